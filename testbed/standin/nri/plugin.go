package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// setter is a plugin that sets memory.swap.max of each container, or of those whose pod has an annotation.
type setter struct{ value, annotation, wanted string }

func (s *setter) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	return nil, nil
}

func (s *setter) CreateContainer(
	_ context.Context, of *api.PodSandbox, _ *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if s.annotation != "" && of.GetAnnotations()[s.annotation] != s.wanted {
		return nil, nil, nil
	}
	adjustment := &api.ContainerAdjustment{}
	adjustment.AddLinuxUnified(swapMax, s.value)
	return adjustment, nil, nil
}

func runPlugin(arguments []string) {
	flags := flag.NewFlagSet("plugin", flag.ExitOnError)
	socket := flags.String("socket", "", "NRI socket of the runtime")
	name := flags.String("name", "other", "name")
	index := flags.String("index", "50", "two digits, its place among plugins")
	own := &setter{}
	flags.StringVar(&own.value, "value", "0", "what it sets")
	flags.StringVar(&own.annotation, "annotation", "", "set it only in pods with this annotation")
	flags.StringVar(&own.wanted, "wanted", "", "the annotation's value")
	if err := flags.Parse(arguments); err != nil {
		fatal(err)
	}
	made, err := stub.New(own,
		stub.WithSocketPath(*socket), stub.WithPluginName(*name), stub.WithPluginIdx(*index),
		stub.WithOnClose(func() { os.Exit(0) }),
	)
	if err != nil {
		fatal(err)
	}
	if err := made.Run(context.Background()); err != nil {
		fatal(fmt.Errorf("plugin: %w", err))
	}
}
