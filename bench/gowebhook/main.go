// A webhook on controller-runtime that decides as `swapwarden webhook` does, for bench/webhook.py to compare with.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	policyKey       = "swapwarden.dev/swap-policy"
	limitKey        = "swapwarden.dev/swap-limit"
	sourceKey       = "swapwarden.dev/policy-source"
	containerPrefix = "swap-limit.swapwarden.dev/"
	swapLabel       = "node.swapwarden.dev/swap"
	mirrorKey       = "kubernetes.io/config.mirror"
	domain          = "swapwarden.dev/"
)

var policies = []string{"Avoid", "Disabled", "NoPreference", "Preferred", "Required"}

type handler struct {
	decoder  admission.Decoder
	fallback string
}

func (h handler) Handle(_ context.Context, request admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := h.decoder.Decode(request, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if _, mirror := pod.Annotations[mirrorKey]; mirror {
		return admission.Allowed("")
	}
	if _, own := pod.Annotations[policyKey]; !own && h.fallback != "" {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[policyKey] = h.fallback
		pod.Annotations[sourceKey] = "namespace"
	}
	if causes := wrong(pod); len(causes) > 0 {
		response := admission.Denied("")
		messages := make([]string, len(causes))
		for i, cause := range causes {
			messages[i] = cause.Field + ": " + cause.Message
		}
		response.Result = &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
			Message: strings.Join(messages, "; "),
			Details: &metav1.StatusDetails{Name: request.Name, Kind: "Pod", Causes: causes},
		}
		return response
	}
	place(pod)
	changed, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, changed).WithWarnings(withoutEffect(pod)...)
}

func withoutEffect(pod *corev1.Pod) []string {
	var warnings []string
	own := func(key string) bool {
		return key == policyKey || key == limitKey || key == sourceKey || strings.HasPrefix(key, containerPrefix)
	}
	for key := range pod.Annotations {
		if (strings.HasPrefix(key, domain) || strings.Contains(key, "."+domain)) && !own(key) {
			warnings = append(warnings, "metadata.annotations["+key+"]: no effect: there is no such annotation")
		}
	}
	for key := range pod.Labels {
		if own(key) {
			warnings = append(warnings, "metadata.labels["+key+"]: no effect: it is an annotation")
		}
	}
	policy := pod.Annotations[policyKey]
	if slices.Contains(policies[3:], policy) || policy == "Avoid" {
		if pod.Spec.NodeName != "" || ofDaemonSet(pod) {
			warnings = append(warnings, "metadata.annotations["+policyKey+"]: no effect on where the pod runs")
		}
	}
	if policy == "Disabled" && pod.Annotations[sourceKey] == "namespace" {
		for key, value := range pod.Annotations {
			if key != limitKey && !strings.HasPrefix(key, containerPrefix) {
				continue
			}
			if quantity, err := resource.ParseQuantity(value); err == nil && quantity.Sign() > 0 {
				warnings = append(warnings, "metadata.annotations["+key+"]: no effect: the policy is the namespace's default")
			}
		}
	}
	return warnings
}

func wrong(pod *corev1.Pod) []metav1.StatusCause {
	var causes []metav1.StatusCause
	add := func(key, message string) {
		causes = append(causes, metav1.StatusCause{
			Type: metav1.CauseTypeFieldValueInvalid, Field: "metadata.annotations[" + key + "]", Message: message,
		})
	}
	limits := map[string]resource.Quantity{}
	for key, value := range pod.Annotations {
		name, perContainer := strings.CutPrefix(key, containerPrefix)
		switch {
		case key == policyKey && !slices.Contains(policies, value):
			add(key, "Unsupported value: "+value+": supported values: "+strings.Join(policies, ", "))
		case key == sourceKey && value != "namespace":
			add(key, "Unsupported value: "+value)
		case key == limitKey || perContainer:
			quantity, err := resource.ParseQuantity(value)
			if err != nil || quantity.Sign() < 0 || strings.HasPrefix(value, "+") {
				add(key, "Invalid value: "+value)
				continue
			}
			limits[key] = quantity
			if perContainer && !hasContainer(pod, name) {
				add(key, "Invalid value: "+name+": the pod has no container of that name")
			}
		}
	}
	policy, whole := pod.Annotations[policyKey], limits[limitKey]
	byDefault := pod.Annotations[sourceKey] == "namespace"
	_, limited := limits[limitKey]
	for key, quantity := range limits {
		if policy == "Disabled" && !byDefault && quantity.Sign() > 0 {
			add(key, "Invalid value: a pod with the policy Disabled has no swap")
		}
		if limited && key != limitKey && quantity.Cmp(whole) > 0 {
			add(key, "Invalid value: more than the pod's own limit")
		}
	}
	if policy == "Required" && !byDefault {
		if ofDaemonSet(pod) {
			add(policyKey, "Forbidden: a DaemonSet's pods run on every node that it chooses")
		} else if found, ok := pod.Spec.NodeSelector[swapLabel]; ok && found != "true" {
			add(policyKey, "Invalid value: "+found)
		}
	}
	return causes
}

func hasContainer(pod *corev1.Pod, name string) bool {
	is := func(container corev1.Container) bool { return container.Name == name }
	return slices.ContainsFunc(pod.Spec.Containers, is) || slices.ContainsFunc(pod.Spec.InitContainers, is)
}

func ofDaemonSet(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return owner.Kind == "DaemonSet" && owner.Controller != nil && *owner.Controller
	})
}

func place(pod *corev1.Pod) {
	if pod.Spec.NodeName != "" || ofDaemonSet(pod) {
		return
	}
	policy := pod.Annotations[policyKey]
	switch policy {
	case "Required":
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		if _, there := pod.Spec.NodeSelector[swapLabel]; !there {
			pod.Spec.NodeSelector[swapLabel] = "true"
		}
	case "Preferred":
		prefer(pod, corev1.NodeSelectorOpIn)
	case "Avoid":
		prefer(pod, corev1.NodeSelectorOpNotIn)
	}
	if policy == "Required" || policy == "Preferred" {
		tolerates := slices.ContainsFunc(pod.Spec.Tolerations, func(one corev1.Toleration) bool {
			return one.Operator == corev1.TolerationOpExists && one.Effect == "" && (one.Key == "" || one.Key == swapLabel)
		})
		if !tolerates {
			wanted := corev1.Toleration{Key: swapLabel, Operator: corev1.TolerationOpExists}
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, wanted)
		}
	}
}

func prefer(pod *corev1.Pod, operator corev1.NodeSelectorOperator) {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	terms := &pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	wanted := corev1.PreferredSchedulingTerm{
		Weight: 50,
		Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: swapLabel, Operator: operator, Values: []string{"true"}},
		}},
	}
	same := func(term corev1.PreferredSchedulingTerm) bool { return reflect.DeepEqual(term, wanted) }
	if !slices.ContainsFunc(*terms, same) {
		*terms = append(*terms, wanted)
	}
}

func main() {
	port := flag.Int("port", 0, "where to serve on 127.0.0.1")
	folder := flag.String("cert-dir", "", "folder of tls.crt and tls.key")
	flag.Parse()
	log.SetLogger(zap.New())
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		panic(err)
	}
	server := webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: *port, CertDir: *folder})
	decoder := admission.NewDecoder(scheme)
	server.Register("/pods", &admission.Webhook{Handler: handler{decoder: decoder}})
	for _, policy := range policies {
		path := "/pods/" + strings.ToLower(policy)
		server.Register(path, &admission.Webhook{Handler: handler{decoder: decoder, fallback: policy}})
	}
	if err := server.Start(signals.SetupSignalHandler()); err != nil {
		log.Log.Error(err, "the webhook ended")
		os.Exit(1)
	}
}
