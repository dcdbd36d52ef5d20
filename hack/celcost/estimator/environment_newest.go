//go:build !oldest

package main

import "k8s.io/apiserver/pkg/cel/environment"

func environmentOfNewRules() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
}
