{{/* CEL expressions that several policies share. They read `variables.now`, the new annotations of a pod, and
`variables.before`, the old ones: maps of texts. The lists in them are in _vocabulary.tpl. */}}

{{/* Whether `k` is the key of one of our annotations. */}}
{{- define "swapwarden.cel.isOwn" -}}
(k in {{ include "swapwarden.cel.ownKeys" . }} || k.startsWith('swap-limit.swapwarden.dev/') || k.startsWith('memory-high.swapwarden.dev/'))
{{- end -}}

{{/* Whether the API server sends a new pod with the annotation `k` to the webhook. */}}
{{- define "swapwarden.cel.isSent" -}}
(k in {{ include "swapwarden.cel.sentKeys" . }} || k.startsWith('swap-limit.swapwarden.dev/'))
{{- end -}}

{{/* Whether `k` is the key of one of our annotations about memory. */}}
{{- define "swapwarden.cel.isOfMemory" -}}
(k in {{ include "swapwarden.cel.memoryKeys" . }} || k.startsWith('memory-high.swapwarden.dev/'))
{{- end -}}

{{/* Whether `k` is a key of our domain, one of our annotations or not. */}}
{{- define "swapwarden.cel.isOfDomain" -}}
(k.startsWith('swapwarden.dev/') || k.contains('.swapwarden.dev/'))
{{- end -}}

{{/* Whether the annotation `k` is a swap limit. */}}
{{- define "swapwarden.cel.isLimit" -}}
(k == 'swapwarden.dev/swap-limit' || k.startsWith('swap-limit.swapwarden.dev/'))
{{- end -}}

{{/* Whether the annotation `k` is a quantity. */}}
{{- define "swapwarden.cel.isQuantity" -}}
(variables.now[k].size() <= {{ include "swapwarden.quantityLength" . }} && variables.now[k].matches({{ include "swapwarden.cel.quantityPattern" . }}))
{{- end -}}

{{/* The value of the annotation `k` for a message, cut. */}}
{{- define "swapwarden.cel.shown" -}}
(variables.now[k].size() > 80 ? variables.now[k].substring(0, 80) + '...' : variables.now[k])
{{- end -}}

{{/* `variables.message`, cut and on one line: the API server drops a message of more than 5 KiB, or with a line break. */}}
{{- define "swapwarden.cel.message" -}}
(variables.message.size() > 2000 ? variables.message.substring(0, 2000) + '...' : variables.message).replace('\n', ' ')
{{- end -}}

{{/* The variable `changed`: keys of our annotations that are new, or whose values changed. */}}
{{- define "swapwarden.changedKeys" -}}
- name: changed
  expression: >-
    variables.now.filter(k, {{ include "swapwarden.cel.isOwn" . }}
      && !(k in variables.before && variables.before[k] == variables.now[k]))
{{- end -}}

{{/* Also `invalid`: a message for each of them whose value is invalid. */}}
{{- define "swapwarden.invalidValues" -}}
{{ include "swapwarden.changedKeys" . }}
- name: invalid
  expression: >-
    variables.changed.filter(k, k == 'swapwarden.dev/swap-policy' && !(variables.now[k] in {{ include "swapwarden.cel.policies" . }}))
      .map(k, 'metadata.annotations[' + k + ']: Unsupported value: "' + {{ include "swapwarden.cel.shown" . }}
        + '": supported values: {{ include "swapwarden.policies" . | trimAll "[]" }}')
    + variables.changed.filter(k, k == 'swapwarden.dev/policy-source' && variables.now[k] != 'namespace')
      .map(k, 'metadata.annotations[' + k + ']: Unsupported value: "' + {{ include "swapwarden.cel.shown" . }}
        + '": supported values: "namespace"')
    + variables.changed.filter(k, k == 'swapwarden.dev/memory-reservation' && !(variables.now[k] in {{ include "swapwarden.cel.reservations" . }}))
      .map(k, 'metadata.annotations[' + k + ']: Unsupported value: "' + {{ include "swapwarden.cel.shown" . }}
        + '": supported values: "None", "Soft"')
    + variables.changed.filter(k, k == 'swapwarden.dev/reclaim' && !(variables.now[k] in {{ include "swapwarden.cel.reclaimModes" . }}))
      .map(k, 'metadata.annotations[' + k + ']: Unsupported value: "' + {{ include "swapwarden.cel.shown" . }}
        + '": supported values: "Continuous", "Off", "Startup"')
    + variables.changed.filter(k, k == 'swapwarden.dev/memory-throttling'
      && !variables.now[k].matches({{ include "swapwarden.cel.throttlingPattern" . }}))
      .map(k, 'metadata.annotations[' + k + ']: Invalid value: "' + {{ include "swapwarden.cel.shown" . }}
        + '": must be Disabled, or percents from 1% to 99%')
    + variables.changed.filter(k, !(k in {{ include "swapwarden.cel.otherKeys" . }}) && !{{ include "swapwarden.cel.isQuantity" . }})
      .map(k, 'metadata.annotations[' + k + ']: Invalid value: "' + {{ include "swapwarden.cel.shown" . }}
        + '": not a quantity, which is a number without a sign, with a unit such as Mi or G')
{{- end -}}

{{/* Also `unknownContainers`: a message for each memory.high for a container that the pod does not have. */}}
{{- define "swapwarden.unknownContainers" -}}
- name: highs
  expression: variables.changed.filter(k, k.startsWith('memory-high.swapwarden.dev/'))
- name: containerNames
  expression: >-
    (has(object.spec.initContainers) ? object.spec.initContainers.map(c, c.name) : []) + object.spec.containers.map(c, c.name)
- name: unknownContainers
  expression: >-
    variables.highs.filter(k, !(k.substring('memory-high.swapwarden.dev/'.size()) in variables.containerNames))
      .map(k, 'metadata.annotations[' + k + ']: Invalid value: "' + k.substring('memory-high.swapwarden.dev/'.size())
        + '": the pod has no container of that name; it has: "' + variables.containerNames.join('", "') + '"')
{{- end -}}

{{/* Variables about a new pod. `policy` is its own policy, else its namespace's `default`. */}}
{{- define "swapwarden.newPodVariables" -}}
- name: now
  expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
- name: own
  expression: "'swapwarden.dev/swap-policy' in variables.now ? variables.now['swapwarden.dev/swap-policy'] : ''"
- name: default
  expression: >-
    'swapwarden.dev/swap-policy' in variables.now
    || !has(namespaceObject.metadata.labels)
    || !('swapwarden.dev/default-swap-policy' in namespaceObject.metadata.labels)
    || !(namespaceObject.metadata.labels['swapwarden.dev/default-swap-policy'] in {{ include "swapwarden.cel.policies" . }})
    ? '' : namespaceObject.metadata.labels['swapwarden.dev/default-swap-policy']
- name: policy
  expression: "variables.default == '' ? variables.own : variables.default"
- name: byDefault
  expression: >-
    variables.default != ''
    || 'swapwarden.dev/policy-source' in variables.now && variables.now['swapwarden.dev/policy-source'] == 'namespace'
- name: ofDaemonSet
  expression: >-
    has(object.metadata.ownerReferences)
    && object.metadata.ownerReferences.exists(o, o.kind == 'DaemonSet' && has(o.controller) && o.controller)
- name: onItsNode
  expression: has(object.spec.nodeName) && object.spec.nodeName != ''
- name: limits
  expression: >-
    variables.now.filter(k, {{ include "swapwarden.cel.isLimit" . }} && {{ include "swapwarden.cel.isQuantity" . }} && isQuantity(variables.now[k]))
- name: limitsAboveZero
  expression: variables.limits.filter(k, quantity(variables.now[k]).isGreaterThan(quantity('0')))
{{- end -}}
