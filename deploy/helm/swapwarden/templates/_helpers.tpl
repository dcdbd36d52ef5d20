{{/* The name that all objects' names begin with. */}}
{{- define "swapwarden.fullname" -}}
{{- $chart := default .Chart.Name .Values.nameOverride -}}
{{- $release := ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (contains $chart .Release.Name) -}}
{{- $name := default $release .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "%s-webhook is no valid name of a Service: it must begin with a letter and have no dots; set fullnameOverride" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* The name of a part's objects. Takes (list ROOT COMPONENT). */}}
{{- define "swapwarden.name" -}}
{{- printf "%s-%s" (include "swapwarden.fullname" (index . 0)) (index . 1) -}}
{{- end -}}

{{/* Labels that select the pods of a part. Takes (list ROOT COMPONENT). */}}
{{- define "swapwarden.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Fail in a clone where `make chart` has not made the files that are not committed. Takes the root. */}}
{{- define "swapwarden.needFiles" -}}
{{- range list "crds/nodeswapprofiles.swapwarden.dev.yaml" "crds/nodeswapstates.swapwarden.dev.yaml" "grafana-dashboard.json" -}}
{{- $path := printf "files/%s" . -}}
{{- if not ($.Files.Get $path) -}}
{{- $missing := printf "%s is missing from the chart: run `make chart` in the clone of the repository" $path -}}
{{- fail $missing -}}
{{- /* `helm lint` ignores fail. The name of a template that does not exist ends it with the same text. */ -}}
{{- include $missing $ -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object. Takes (list ROOT COMPONENT). */}}
{{- define "swapwarden.labels" -}}
{{- $root := index . 0 -}}
{{- include "swapwarden.needFiles" $root -}}
{{ include "swapwarden.selectorLabels" . }}
app.kubernetes.io/part-of: swapwarden
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels and annotations of a part's pods. Takes (list ROOT COMPONENT). */}}
{{- define "swapwarden.podMetadata" -}}
{{- $values := index (index . 0).Values (index . 1) -}}
labels:
  {{- include "swapwarden.selectorLabels" . | nindent 2 }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "swapwarden.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Where a part's pods may run. Takes (list ROOT COMPONENT). */}}
{{- define "swapwarden.placement" -}}
{{- $startup := list -}}
{{- if (index . 0).Values.startupTaint -}}
{{- $startup = list (dict "key" "node.swapwarden.dev/agent-not-ready" "operator" "Exists") -}}
{{- end -}}
{{- with index (index . 0).Values (index . 1) }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat (default list .tolerations) $startup }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Replicas on different nodes if possible. Takes (list ROOT COMPONENT). */}}
{{- define "swapwarden.spread" -}}
topologySpreadConstraints:
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- topologyKey: {{ . }}
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "swapwarden.selectorLabels" $ | nindent 6 }}
{{- end }}
{{- end -}}

{{/* Security context of a container that needs neither root nor anything else. */}}
{{- define "swapwarden.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  readOnlyRootFilesystem: true
{{- end -}}

{{/* OpenShift gives each namespace users and groups of its own, and refuses others. */}}
{{- define "swapwarden.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  {{- if not .Values.openshift.securityContextConstraints }}
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/*
Token and CA for the API server, at the usual place. The token that Kubernetes mounts by itself is not used: API servers accept it
for a year (--service-account-extend-token-expiration).
*/}}
{{- define "swapwarden.tokenVolume" -}}
- name: token
  projected:
    sources:
    - serviceAccountToken: {path: token, expirationSeconds: 3600}
    - configMap:
        name: kube-root-ca.crt
        items: [{key: ca.crt, path: ca.crt}]
    - downwardAPI:
        items:
        - path: namespace
          fieldRef: {fieldPath: metadata.namespace}
{{- end -}}

{{- define "swapwarden.tokenMount" -}}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end -}}

{{- define "swapwarden.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "swapwarden.logArguments" -}}
- --log-level={{ .Values.log.level }}
- --log-format={{ .Values.log.format }}
{{- end -}}

{{/* Takes the host to ask; if it is empty, the pod's address. */}}
{{- define "swapwarden.probes" -}}
{{- $host := ternary "" (printf ", host: %s" .) (empty .) -}}
# Five minutes for the first answer: a node that is busy with its own start is no reason for a restart.
startupProbe:
  httpGet: {path: /healthz, port: metrics{{ $host }}}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 300
livenessProbe:
  httpGet: {path: /healthz, port: metrics{{ $host }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics{{ $host }}}
  periodSeconds: 2
  timeoutSeconds: 5
{{- end -}}

{{/* Where the API server is: the rule by which a NetworkPolicy lets a part reach it. */}}
{{- define "swapwarden.apiServerEgress" -}}
egress:
{{- with .Values.networkPolicy.apiServer }}
- {{ if .ports }}ports:
  {{- range .ports }}
  - {protocol: TCP, port: {{ . }}}
  {{- end }}
  {{- else }}ports: [{protocol: TCP}]
  {{- end }}
  {{- with .cidrs }}
  to:
  {{- range . }}
  - ipBlock: {cidr: {{ . | quote }}}
  {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Peers that may read metrics and health; nothing if nobody may. */}}
{{- define "swapwarden.metricsIngress" -}}
{{- with .Values.networkPolicy.metricsFrom }}
- ports: [{protocol: TCP, port: metrics}]
  from:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Annotations of a part's object. Takes the annotations. */}}
{{- define "swapwarden.annotations" -}}
{{- with . }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The environment that a part gets besides its own. Takes the list. */}}
{{- define "swapwarden.extraEnv" -}}
{{- with . }}
{{- toYaml . }}
{{- end }}
{{- end -}}

{{/* Arguments that a part gets besides its own. Takes the list. */}}
{{- define "swapwarden.extraArguments" -}}
{{- range . }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Whether a quota must admit pods of the system's priority classes: some text, or none. */}}
{{- define "swapwarden.priorityClassQuota" -}}
{{- $create := .Values.priorityClassQuota.create -}}
{{- $gke := or (contains "-gke." .Capabilities.KubeVersion.Version) (.Capabilities.APIVersions.Has "networking.gke.io/v1") -}}
{{- if or (eq $create "Always") (and (eq $create "Auto") $gke) }}true{{ end -}}
{{- end -}}

{{/* Namespaces whose pods are never sent to the webhook, as a match expression. */}}
{{- define "swapwarden.excludedNamespaces" -}}
{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, {{ .Release.Namespace | quote }}]}
{{- end -}}

{{/* Fields of each entry of the webhook's registration. Takes (list ROOT PATH FAILURE-POLICY). */}}
{{- define "swapwarden.webhookEntry" -}}
{{- $root := index . 0 -}}
admissionReviewVersions: [v1]
clientConfig:
  service:
    namespace: {{ $root.Release.Namespace | quote }}
    name: {{ include "swapwarden.name" (list $root "webhook") }}
    port: 443
    path: {{ index . 1 }}
rules:
- apiGroups: [""]
  apiVersions: [v1]
  resources: [pods]
  operations: [CREATE]
  scope: Namespaced
{{- with $root.Values.admission.objectSelector }}
objectSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
failurePolicy: {{ index . 2 }}
timeoutSeconds: {{ $root.Values.admission.timeoutSeconds }}
sideEffects: None
matchPolicy: Equivalent
reinvocationPolicy: IfNeeded
{{- end -}}

{{/* A PodMonitor. Takes (list ROOT COMPONENT). */}}
{{- define "swapwarden.podMonitor" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.podMonitor.enabled }}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ include "swapwarden.name" . }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "swapwarden.labels" . | nindent 4 }}
    {{- with $root.Values.podMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "swapwarden.selectorLabels" . | nindent 6 }}
  podMetricsEndpoints:
  - port: metrics
    interval: {{ $root.Values.podMonitor.interval }}
    {{- if eq (index . 1) "agent" }}
    relabelings:
    # Alerts and dashboards are about nodes, whichever pod reports.
    - sourceLabels: [__meta_kubernetes_pod_node_name]
      targetLabel: node
    {{- end }}
{{- end }}
{{- end -}}

{{/* How many pods a drain may take away at a time. Takes (list ROOT COMPONENT). */}}
{{- define "swapwarden.disruptionBudget" -}}
{{- $root := index . 0 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "swapwarden.name" . }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "swapwarden.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "swapwarden.selectorLabels" . | nindent 6 }}
{{- end -}}

{{/*
The Secret with the webhook's certificate. Each maker has one of its own: Helm takes over no Secret that cert-manager made,
and none can change its type.
*/}}
{{- define "swapwarden.certificateSecret" -}}
{{- $suffix := ternary "certificate" "tls" (eq .Values.certificates.source "CertManager") -}}
{{- printf "%s-%s" (include "swapwarden.name" (list . "webhook")) $suffix -}}
{{- end -}}

{{/* Has cert-manager write the authority into the registration. */}}
{{- define "swapwarden.injection" -}}
{{- if eq .Values.certificates.source "CertManager" }}
annotations:
  cert-manager.io/inject-ca-from: {{ printf "%s/%s" .Release.Namespace (include "swapwarden.name" (list . "webhook")) }}
{{- end }}
{{- end -}}

{{/* The profiles to keep, by name, as JSON. */}}
{{- define "swapwarden.profiles" -}}
{{- $control := dict -}}
{{- if .Values.controlPlaneProfile.enabled -}}
{{- if hasKey .Values.profiles "control-plane" -}}
{{- fail "profiles.control-plane and controlPlaneProfile.enabled make two profiles of one name: rename or remove the one" -}}
{{- end -}}
{{- $selector := dict "matchExpressions" (list (dict "key" "node-role.kubernetes.io/control-plane" "operator" "Exists")) -}}
{{- $spec := dict "nodeSelector" $selector "priority" 1000 "swap" (dict "behavior" "NoSwap") -}}
{{- $control = dict "control-plane" $spec -}}
{{- end -}}
{{- merge $control .Values.profiles | toJson -}}
{{- end -}}

{{/* Annotations of what applies the profiles: there for as long as it runs, and no longer where it
fails: Helm would not remove it with the release. Takes the weight. */}}
{{- define "swapwarden.profileHook" -}}
helm.sh/hook: post-install,post-upgrade,post-rollback
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end -}}

{{/* Annotations of what restores before the release is removed: there for as long as it runs, and no longer where it
fails: Helm would not remove it with the release. Takes the weight. */}}
{{- define "swapwarden.uninstallHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end -}}

{{/* Whether the controller makes the webhook's certificate: some text, or none. */}}
{{- define "swapwarden.makesCertificate" -}}
{{- if and (eq .Values.admission.mode "Webhook") (eq .Values.certificates.source "Controller") }}true{{ end -}}
{{- end -}}

{{/* The value eviction as text: YAML may read a bare Off as false. */}}
{{- define "swapwarden.eviction" -}}
{{- .Values.eviction | default "Off" -}}
{{- end -}}

{{/* Which pods the policies look at that stand in for the webhook. Takes (list ROOT ONLY-WITH-A-DEFAULT). */}}
{{- define "swapwarden.newPods" -}}
{{- $root := index . 0 -}}
matchConstraints:
  matchPolicy: Equivalent
  namespaceSelector:
    matchExpressions:
    - {{ include "swapwarden.excludedNamespaces" $root }}
    {{- if index . 1 }}
    - {key: swapwarden.dev/default-swap-policy, operator: In, values: {{ include "swapwarden.policies" $root }}}
    {{- end }}
  {{- with $root.Values.admission.objectSelector }}
  objectSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resourceRules:
  - apiGroups: [""]
    apiVersions: [v1]
    resources: [pods]
    operations: [CREATE]
matchConditions:
- name: is-no-mirror-pod
  expression: "!has(object.metadata.annotations) || !('kubernetes.io/config.mirror' in object.metadata.annotations)"
{{- end -}}

{{/* Whether a pod has any key of ours, as a match condition. */}}
{{- define "swapwarden.hasKey" -}}
- name: has-a-key-of-our-domain
  expression: >-
    (has(object.metadata.annotations) && object.metadata.annotations.exists(k,
      {{ include "swapwarden.cel.isOfDomain" . }} && !{{ include "swapwarden.cel.isOfMemory" . }}))
    || (has(object.metadata.labels) && object.metadata.labels.exists(k, {{ include "swapwarden.cel.isOfDomain" . }}))
{{- end -}}

{{/* Something where labels may be asked for by NodeFeatures. */}}
{{- define "swapwarden.asksForLabels" -}}
{{- if ne .Values.controller.labelPublisher "Direct" }}true{{ end }}
{{- end }}

{{/* The controller's flag for the nodes that are vouched for. */}}
{{- define "swapwarden.vouchedNodes" -}}
{{- $pairs := list }}
{{- range $key, $value := . }}{{ $pairs = append $pairs (printf "%s=%s" $key $value) }}{{ end -}}
--vouched-nodes={{ join "," $pairs }}
{{- end }}

{{/* Whose requests a flow is made of. Takes (list ROOT COMPONENT). */}}
{{- define "swapwarden.flowSubject" -}}
subjects:
- kind: ServiceAccount
  serviceAccount: {name: {{ include "swapwarden.name" . }}, namespace: {{ (index . 0).Release.Namespace | quote }}}
{{- end -}}

{{/* The kernel's files that the agent is given, each a mount of its own: the others beside them are not its business. */}}
{{- define "swapwarden.kernelFiles" -}}
{{- $files := list }}
{{- if (.Values.agent.kernel).vm }}
{{- range list "swappiness" "min_free_kbytes" "watermark_scale_factor" "page-cluster" }}
{{- $files = append $files (dict "group" "vm" "file" . "path" (printf "/proc/sys/vm/%s" .)) }}
{{- end }}
{{- end }}
{{- if (.Values.agent.kernel).zswap }}
{{- range list "enabled" "compressor" "max_pool_percent" }}
{{- $files = append $files (dict "group" "zswap" "file" . "path" (printf "/sys/module/zswap/parameters/%s" .)) }}
{{- end }}
{{- end }}
{{- toJson $files }}
{{- end }}

{{- define "swapwarden.kernelMounts" -}}
{{- range include "swapwarden.kernelFiles" . | fromJsonArray }}
- {name: {{ .group }}-{{ .file | replace "_" "-" }}, mountPath: /host/{{ .group }}/{{ .file }}}
{{- end }}
{{- end }}

{{- define "swapwarden.kernelVolumes" -}}
{{- range include "swapwarden.kernelFiles" . | fromJsonArray }}
- name: {{ .group }}-{{ .file | replace "_" "-" }}
  hostPath: {path: {{ .path }}, type: File}
{{- end }}
{{- end }}

{{/* The systemd drop-in folders for slices of the node, as JSON. */}}
{{- define "swapwarden.sliceDropIns" -}}
{{- $mounts := list }}
{{- range $place, $slice := (.Values.agent.dropIns).slices }}
{{- $mounts = append $mounts (dict "volume" (printf "slice-drop-ins-%d" $place) "folder" (printf "%s.d" $slice)) }}
{{- end }}
{{- toJson $mounts }}
{{- end }}

{{/* The systemd drop-in folders to which the agent writes, as JSON. */}}
{{- define "swapwarden.dropIns" -}}
{{- $mounts := list }}
{{- if (.Values.agent.dropIns).mount }}
{{- range list "burstable" "besteffort" }}
{{- $folder := printf "%s-%s-.slice.d" $.Values.agent.dropIns.prefix . }}
{{- $mounts = append $mounts (dict "volume" (printf "drop-ins-%s" .) "folder" $folder) }}
{{- end }}
{{- end }}
{{- toJson $mounts }}
{{- end }}

{{/* Rights that OpenShift gives to a part with host paths. Takes (list ROOT COMPONENT CAPABILITIES). */}}
{{- define "swapwarden.constraints" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
apiVersion: security.openshift.io/v1
kind: SecurityContextConstraints
metadata:
  name: {{ include "swapwarden.name" (list $root $part) }}
  labels:
    {{- include "swapwarden.labels" (list $root $part) | nindent 4 }}
priority: 0
users:
- system:serviceaccount:{{ $root.Release.Namespace }}:{{ include "swapwarden.name" (list $root $part) }}
allowPrivilegedContainer: false
allowPrivilegeEscalation: false
allowHostDirVolumePlugin: true
allowHostIPC: false
allowHostNetwork: false
allowHostPID: false
allowHostPorts: false
allowedCapabilities: {{ index . 2 | toJson }}
defaultAddCapabilities: []
requiredDropCapabilities: [ALL]
readOnlyRootFilesystem: true
runAsUser: {type: RunAsAny}
fsGroup: {type: RunAsAny}
supplementalGroups: {type: RunAsAny}
seLinuxContext: {type: RunAsAny}
seccompProfiles: [runtime/default]
volumes: [hostPath, projected]
{{- end }}

{{/* The DaemonSets whose pods have host paths, each named as its service account, in CEL. */}}
{{- define "swapwarden.hostParts" -}}
{{- $parts := list "agent" -}}
{{- if include "swapwarden.nri" . }}{{ $parts = append $parts "nri" }}{{ end -}}
{{- $names := list -}}
{{- range $parts }}{{ $names = append $names (printf "'%s'" (include "swapwarden.name" (list $ .))) }}{{ end -}}
[{{ join ", " $names }}]
{{- end }}

{{/* Whether container runtimes get limits: nothing, auto or required. YAML reads an `off` without quotes as false. */}}
{{- define "swapwarden.nri" -}}
{{- $mode := .Values.nri.mode | toString -}}
{{- if not (has $mode (list "off" "false")) }}{{ $mode }}{{ end -}}
{{- end }}

{{/* Whether the installation has systemd drop-ins: some text, or none. */}}
{{- define "swapwarden.hasDropIns" -}}
{{- if or (.Values.agent.dropIns).mount (.Values.agent.dropIns).slices }}true{{ end -}}
{{- end }}

{{/* Where a container has the folders of drop-ins, as arguments. */}}
{{- define "swapwarden.dropInArguments" -}}
{{- if (.Values.agent.dropIns).slices }}
- --slice-drop-in-dir=/host/slice-drop-ins
{{- end }}
{{- if (.Values.agent.dropIns).mount }}
- --drop-in-dir=/host/drop-ins
{{- end }}
{{- end }}

{{/* The folders of drop-ins in a container that writes to them. */}}
{{- define "swapwarden.dropInMounts" -}}
{{- range include "swapwarden.dropIns" . | fromJsonArray }}
- {name: {{ .volume }}, mountPath: {{ printf "/host/drop-ins/%s" .folder | quote }}}
{{- end }}
{{- range include "swapwarden.sliceDropIns" . | fromJsonArray }}
- {name: {{ .volume }}, mountPath: {{ printf "/host/slice-drop-ins/%s" .folder | quote }}}
{{- end }}
{{- end }}

{{- define "swapwarden.dropInVolumes" -}}
{{- range concat (include "swapwarden.dropIns" . | fromJsonArray) (include "swapwarden.sliceDropIns" . | fromJsonArray) }}
- name: {{ .volume }}
  hostPath: {path: {{ printf "/etc/systemd/system/%s" .folder | quote }}, type: DirectoryOrCreate}
{{- end }}
{{- end }}
