//go:build novalidator

// Before NRI 0.10 no plugin validates.

package main

import "github.com/containerd/nri/pkg/adaptation"

func withValidator(bool) []adaptation.Option { return nil }
