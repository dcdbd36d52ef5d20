{{/* Made by `make generate`; do not edit. */}}
{{- define "swapwarden.policies" -}}
["Avoid", "Disabled", "NoPreference", "Preferred", "Required"]
{{- end -}}
{{- define "swapwarden.quantityLength" -}}
64
{{- end -}}
{{- define "swapwarden.cel.policies" -}}
['Avoid', 'Disabled', 'NoPreference', 'Preferred', 'Required']
{{- end -}}
{{- define "swapwarden.cel.ownKeys" -}}
['swapwarden.dev/swap-policy', 'swapwarden.dev/policy-source', 'swapwarden.dev/swap-limit', 'swapwarden.dev/memory-reservation', 'swapwarden.dev/memory-low', 'swapwarden.dev/memory-throttling', 'swapwarden.dev/memory-high', 'swapwarden.dev/reclaim']
{{- end -}}
{{- define "swapwarden.cel.sentKeys" -}}
['swapwarden.dev/swap-policy', 'swapwarden.dev/policy-source', 'swapwarden.dev/swap-limit']
{{- end -}}
{{- define "swapwarden.cel.memoryKeys" -}}
['swapwarden.dev/memory-reservation', 'swapwarden.dev/memory-low', 'swapwarden.dev/memory-throttling', 'swapwarden.dev/memory-high', 'swapwarden.dev/reclaim']
{{- end -}}
{{- define "swapwarden.cel.otherKeys" -}}
['swapwarden.dev/swap-policy', 'swapwarden.dev/policy-source', 'swapwarden.dev/memory-reservation', 'swapwarden.dev/memory-throttling', 'swapwarden.dev/reclaim']
{{- end -}}
{{- define "swapwarden.cel.reservations" -}}
['None', 'Soft']
{{- end -}}
{{- define "swapwarden.cel.reclaimModes" -}}
['Continuous', 'Off', 'Startup']
{{- end -}}
{{- define "swapwarden.cel.reclaiming" -}}
['Continuous', 'Startup']
{{- end -}}
{{- define "swapwarden.cel.throttlingPattern" -}}
'^(Disabled|[1-9][0-9]?%)$'
{{- end -}}
{{- define "swapwarden.cel.quantityPattern" -}}
'^((\\d+[.]?\\d*|[.]\\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\\d{1,3})?)$'
{{- end -}}
{{- define "swapwarden.cel.nodeLabels" -}}
['feature.node.kubernetes.io/memory-swap', 'node.swapwarden.dev/swap', 'node.swapwarden.dev/swap-behavior', 'node.swapwarden.dev/swap-backing', 'node.swapwarden.dev/swap-encrypted', 'node.swapwarden.dev/swap-unmet', 'swapwarden.dev.node-restriction.kubernetes.io/encrypted-swap']
{{- end -}}
{{- define "swapwarden.cel.requiredKey" -}}
'required-plugins.noderesource.dev'
{{- end -}}
{{- define "swapwarden.cel.requiredValue" -}}
'["swapwarden"]'
{{- end -}}
{{- define "swapwarden.cel.requiredPrefix" -}}
'["swapwarden", '
{{- end -}}
{{- define "swapwarden.cel.requiredList" -}}
'^([ \\t\\r\\n]*\\[(?s:.*)\\][ \\t\\r\\n]*)$'
{{- end -}}
{{- define "swapwarden.cel.requiredEmpty" -}}
'^([ \\t\\r\\n]*\\[[ \\t\\r\\n]*\\][ \\t\\r\\n]*)$'
{{- end -}}
{{- define "swapwarden.cel.requiredNamed" -}}
'^((?s:.*)[\\[, \\t\\r\\n]["\']?swapwarden["\']?[ \\t\\r\\n]*[,\\]](?s:.*))$'
{{- end -}}
{{- define "swapwarden.cel.publicLabels" -}}
['feature.node.kubernetes.io/memory-swap', 'node.swapwarden.dev/swap', 'node.swapwarden.dev/swap-behavior', 'node.swapwarden.dev/swap-backing', 'node.swapwarden.dev/swap-encrypted', 'node.swapwarden.dev/swap-unmet']
{{- end -}}
