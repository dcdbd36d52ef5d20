//go:build !noblock

package main

// block keeps plugins from being synchronized until the returned function is called.
func (r *runtime) block() func() { return r.nri.BlockPluginSync().Unblock }
