//go:build !novalidator

package main

import (
	"github.com/containerd/nri/pkg/adaptation"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
)

func withValidator(enable bool) []adaptation.Option {
	return []adaptation.Option{adaptation.WithDefaultValidator(&validator.DefaultValidatorConfig{Enable: enable})}
}
