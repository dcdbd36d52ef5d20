package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
)

const swapMax = "memory.swap.max"

// measuredPods are as many as a node has: a plugin may remember its pods.
const measuredPods = 200

// pod is a pod's sandbox as the driver describes it.
type pod struct {
	ID           string            `json:"id"`
	Name         string            `json:"name"`
	UID          string            `json:"uid"`
	Namespace    string            `json:"namespace"`
	Annotations  map[string]string `json:"annotations"`
	CgroupParent string            `json:"cgroupParent"`
}

// container is a container; Unified and Annotations hold what the spec holds after all plugins.
type container struct {
	ID          string            `json:"id"`
	Pod         string            `json:"pod"`
	Name        string            `json:"name"`
	Unified     map[string]string `json:"unified"`
	Annotations map[string]string `json:"annotations"`
	// Env and Mounts are numbers of made-up entries, for the size of messages.
	Env    int `json:"env"`
	Mounts int `json:"mounts"`
	// Fails has each update fail, as that of a container that has just ended.
	Fails bool `json:"fails"`
}

func (p *pod) toNRI() *api.PodSandbox {
	return &api.PodSandbox{
		Id: p.ID, Name: p.Name, Uid: p.UID, Namespace: p.Namespace, Annotations: p.Annotations,
		Labels:         map[string]string{"app": p.Name, "pod-template-hash": "7c9d8f6b5d"},
		RuntimeHandler: "runc",
		Linux:          &api.LinuxPodSandbox{CgroupParent: p.CgroupParent},
	}
}

func (c *container) toNRI() *api.Container {
	env := make([]string, 0, c.Env)
	for at := range c.Env {
		env = append(env, fmt.Sprintf("SETTING_%d=value-%d-of-a-usual-length", at, at))
	}
	mounts := make([]*api.Mount, 0, c.Mounts)
	for at := range c.Mounts {
		mounts = append(mounts, &api.Mount{
			Destination: fmt.Sprintf("/var/lib/service/volume-%d", at), Type: "bind",
			Source:  fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~empty-dir/volume-%d", c.Pod, at),
			Options: []string{"rbind", "rprivate", "rw"},
		})
	}
	return &api.Container{
		Id: c.ID, PodSandboxId: c.Pod, Name: c.Name, State: api.ContainerState_CONTAINER_CREATED,
		Annotations: maps.Clone(c.Annotations), Args: []string{"/bin/service", "--serve"}, Env: env, Mounts: mounts,
		Linux: &api.LinuxContainer{
			Resources:   c.resources(),
			CgroupsPath: "kubepods.slice:cri-containerd:" + c.ID,
		},
	}
}

func (c *container) resources() *api.LinuxResources {
	return &api.LinuxResources{
		Memory:  &api.LinuxMemory{Limit: api.Int64(int64(256 << 20))},
		Cpu:     &api.LinuxCPU{Shares: api.UInt64(uint64(102))},
		Unified: maps.Clone(c.Unified),
	}
}

type settings struct {
	// name and version are the runtime's: they tell a plugin what it can do, where NRI tells no version of its own.
	name, version string
	socket        string
	validator     bool
	work          time.Duration
}

// runtime does with the library what containerd does (containerd: internal/nri): one lock for requests and updates, no
// plugin synchronized during a request.
type runtime struct {
	sync.Mutex
	settings   settings
	output     *output
	nri        *adaptation.Adaptation
	pods       map[string]*pod
	containers map[string]*container
	order      []string
}

func newRuntime(options settings, out *output) *runtime {
	return &runtime{
		settings: options, output: out, pods: map[string]*pod{}, containers: map[string]*container{},
	}
}

func (r *runtime) do(asked *request) (map[string]any, error) {
	switch asked.Op {
	case "start":
		return map[string]any{}, r.start()
	case "populate":
		return r.populate(asked)
	case "sandbox":
		return r.sandbox(asked.Pod)
	case "create":
		return r.create(asked.Container)
	case "update":
		return r.update(asked.Container.ID, asked.Unified)
	case "remove":
		return r.remove(asked.Container.ID)
	case "list":
		return r.list(), nil
	case "measure":
		return r.measure(asked)
	}
	return nil, fmt.Errorf("unknown op %q", asked.Op)
}

func (r *runtime) start() error {
	nowhere := r.settings.socket + ".plugins"
	options := append(withValidator(r.settings.validator),
		adaptation.WithSocketPath(r.settings.socket),
		adaptation.WithPluginPath(nowhere),
		adaptation.WithPluginConfigPath(nowhere),
	)
	found, err := adaptation.New(r.settings.name, r.settings.version, r.synchronize, r.updateUnasked, options...)
	if err != nil {
		return err
	}
	r.nri = found
	return r.nri.Start()
}

// synchronize hands all containers to a plugin that has just registered. The library calls it once at its start, too.
func (r *runtime) synchronize(ctx context.Context, callback adaptation.SyncCB) error {
	r.Lock()
	defer r.Unlock()
	pods := make([]*api.PodSandbox, 0, len(r.pods))
	for _, each := range r.pods {
		pods = append(pods, each.toNRI())
	}
	containers := make([]*api.Container, 0, len(r.order))
	for _, id := range r.order {
		containers = append(containers, r.containers[id].toNRI())
	}
	begun := time.Now()
	updates, err := callback(ctx, pods, containers)
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.output.send(map[string]any{
		"event": "synchronized", "seconds": time.Since(begun).Seconds(), "error": text,
		"pods": len(pods), "containers": len(containers), "updates": len(updates),
	})
	if err != nil {
		return err
	}
	// Failures of these updates are only logged.
	_, _ = r.apply(updates)
	return nil
}

func (r *runtime) updateUnasked(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	r.Lock()
	defer r.Unlock()
	values := map[string]string{}
	for _, each := range updates {
		values[each.ContainerId] = each.GetLinux().GetResources().GetUnified()[swapMax]
	}
	r.output.send(map[string]any{"event": "updates", "values": values})
	return r.apply(updates)
}

// apply is containerd's: a container that is unknown is passed over, one failure makes the whole call an error.
func (r *runtime) apply(updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	var failed []*api.ContainerUpdate
	for _, each := range updates {
		found := r.containers[each.ContainerId]
		if found == nil {
			continue
		}
		if found.Fails {
			if !each.IgnoreFailure {
				failed = append(failed, each)
			}
			continue
		}
		merge(&found.Unified, each.GetLinux().GetResources().GetUnified())
	}
	if len(failed) > 0 {
		return failed, errors.New("NRI update of some containers failed")
	}
	return nil, nil
}

func merge(into *map[string]string, from map[string]string) {
	if *into == nil {
		*into = map[string]string{}
	}
	maps.Copy(*into, from)
}

func (r *runtime) populate(asked *request) (map[string]any, error) {
	r.Lock()
	defer r.Unlock()
	for _, each := range asked.Pods {
		r.pods[each.ID] = each
	}
	for _, each := range asked.Containers {
		r.keep(each)
	}
	return map[string]any{"pods": len(r.pods), "containers": len(r.containers)}, nil
}

func (r *runtime) keep(each *container) {
	if r.containers[each.ID] == nil {
		r.order = append(r.order, each.ID)
	}
	r.containers[each.ID] = each
}

func (r *runtime) sandbox(started *pod) (map[string]any, error) {
	defer r.block()()
	r.Lock()
	defer r.Unlock()
	begun := time.Now()
	err := runPodSandbox(r.nri, started.toNRI())
	seconds := time.Since(begun).Seconds()
	if err != nil {
		return nil, err
	}
	r.pods[started.ID] = started
	return map[string]any{"seconds": seconds}, nil
}

func (r *runtime) create(wanted *container) (map[string]any, error) {
	defer r.block()()
	r.Lock()
	defer r.Unlock()
	of := r.pods[wanted.Pod]
	if of == nil {
		return nil, fmt.Errorf("no pod %q", wanted.Pod)
	}
	asked := &api.CreateContainerRequest{Pod: of.toNRI(), Container: wanted.toNRI()}
	time.Sleep(r.settings.work)
	begun := time.Now()
	answer, err := r.nri.CreateContainer(context.Background(), asked)
	seconds := time.Since(begun).Seconds()
	time.Sleep(r.settings.work)
	if err != nil {
		return map[string]any{"error": err.Error(), "seconds": seconds}, nil
	}
	adjusted := answer.GetAdjust()
	merge(&wanted.Unified, adjusted.GetLinux().GetResources().GetUnified())
	for name, value := range adjusted.GetAnnotations() {
		// A name behind a dash is one to remove.
		if remove, yes := strings.CutPrefix(name, "-"); yes {
			delete(wanted.Annotations, remove)
			continue
		}
		merge(&wanted.Annotations, map[string]string{name: value})
	}
	r.keep(wanted)
	return map[string]any{
		"seconds": seconds, "unified": wanted.Unified, "annotations": wanted.Annotations,
		"adjusted": adjusted.GetLinux().GetResources().GetUnified(), "others": len(answer.GetUpdate()),
	}, nil
}

func (r *runtime) update(id string, unified map[string]string) (map[string]any, error) {
	defer r.block()()
	r.Lock()
	defer r.Unlock()
	found := r.containers[id]
	if found == nil {
		return nil, fmt.Errorf("no container %q", id)
	}
	wanted := &container{Unified: unified}
	asked := &api.UpdateContainerRequest{
		Pod: r.pods[found.Pod].toNRI(), Container: found.toNRI(), LinuxResources: wanted.resources(),
	}
	begun := time.Now()
	answer, err := r.nri.UpdateContainer(context.Background(), asked)
	seconds := time.Since(begun).Seconds()
	if err != nil {
		return map[string]any{"error": err.Error(), "seconds": seconds}, nil
	}
	// The last entry is that of the container itself; the library leaves it nil if no plugin answered.
	last := len(answer.Update) - 1
	if _, err := r.apply(answer.Update[:last]); err != nil {
		return nil, err
	}
	merge(&found.Unified, unified)
	merge(&found.Unified, answer.Update[last].GetLinux().GetResources().GetUnified())
	return map[string]any{"seconds": seconds, "unified": found.Unified}, nil
}

func (r *runtime) remove(id string) (map[string]any, error) {
	defer r.block()()
	r.Lock()
	defer r.Unlock()
	found := r.containers[id]
	if found == nil {
		return nil, fmt.Errorf("no container %q", id)
	}
	if err := removeContainer(r.nri, r.pods[found.Pod].toNRI(), found.toNRI()); err != nil {
		return nil, err
	}
	delete(r.containers, id)
	for at, each := range r.order {
		if each == id {
			r.order = append(r.order[:at], r.order[at+1:]...)
			break
		}
	}
	return map[string]any{}, nil
}

func (r *runtime) list() map[string]any {
	r.Lock()
	defer r.Unlock()
	found := map[string]any{}
	for id, each := range r.containers {
		found[id] = map[string]any{"unified": each.Unified, "annotations": each.Annotations}
	}
	return map[string]any{"containers": found}
}

// measure creates COUNT containers like CONTAINER in each of PODS in turn and keeps none. It returns the microseconds
// that each request took, how many were adjusted, and the bytes of the last one.
func (r *runtime) measure(asked *request) (map[string]any, error) {
	defer r.block()()
	r.Lock()
	defer r.Unlock()
	taken := make([]float64, 0, asked.Count)
	adjusted, size := 0, 0
	for at := range asked.Count {
		of, one := *asked.Pods[at%len(asked.Pods)], *asked.Container
		of.UID = fmt.Sprintf("%s-%d", of.UID, at%measuredPods)
		one.ID, one.Pod = fmt.Sprintf("%s-%d", one.ID, at), of.ID
		message := &api.CreateContainerRequest{Pod: of.toNRI(), Container: one.toNRI()}
		size = proto.Size(message)
		begun := time.Now()
		answer, err := r.nri.CreateContainer(context.Background(), message)
		taken = append(taken, float64(time.Since(begun).Nanoseconds())/1e3)
		if err != nil {
			return nil, err
		}
		if _, yes := answer.GetAdjust().GetLinux().GetResources().GetUnified()[swapMax]; yes {
			adjusted++
		}
	}
	return map[string]any{"micros": taken, "adjusted": adjusted, "bytes": size}, nil
}
