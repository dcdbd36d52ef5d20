//go:build statechange

// Before NRI 0.12, events without an answer are one message.

package main

import (
	"context"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

func runPodSandbox(nri *adaptation.Adaptation, of *api.PodSandbox) error {
	return nri.RunPodSandbox(context.Background(), &api.StateChangeEvent{Pod: of})
}

func removeContainer(nri *adaptation.Adaptation, of *api.PodSandbox, removed *api.Container) error {
	return nri.RemoveContainer(context.Background(), &api.StateChangeEvent{Pod: of, Container: removed})
}
