{{/* Made by `make generate`; do not edit. */}}
{{- define "swapwarden.alerts" -}}
{{- if not (has "SwapwardenDisabledPodUsesSwap" .Values.prometheusRule.disabled) }}
- alert: SwapwardenDisabledPodUsesSwap
  expr: max by (cluster, node) (swapwarden_controller_disabled_pods_swap_bytes) > {{ $.Values.prometheusRule.thresholds.disabledMebibytes }} * 1024 * 1024
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: Pods that must not swap have swap in use.
    description: On node {{`{{`}} $labels.node }}, pods whose policy is Disabled have {{`{{`}} $value | humanize1024 }}B in swap, and have had some for 15 minutes. They can take little more, and what they have leaves swap only as it is used.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenDisabledPodUsesSwap" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenDriftFight" .Values.prometheusRule.disabled) }}
- alert: SwapwardenDriftFight
  expr: |-
    sum by (cluster, node) (increase(swapwarden_agent_rewrites_total{cause="OtherWriter"}[15m])) > {{ $.Values.prometheusRule.thresholds.driftRewrites }}
    or
    sum by (cluster, node) (increase(swapwarden_agent_rewrites_total{cause="OtherWriter"}[75m]))
      and on (cluster, node) swapwarden_agent_condition{type="Drifted",reason="Yielded"} == 1
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: Another writer fights over swap limits.
    description: On node {{`{{`}} $labels.node }}, something else has written over Swapwarden's swap limits {{`{{`}} $value | printf "%.0f" }} times lately. Values that it raised were lowered again each time; a value that it keeps lowering is left to it for an hour.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenDriftFight" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenAgentSilent" .Values.prometheusRule.disabled) }}
- alert: SwapwardenAgentSilent
  expr: |-
    max by (cluster, node) (swapwarden_controller_node_silent) == 1
      unless on (cluster, node)
    max by (cluster, node) (kube_node_status_condition{condition="Ready",status="true"}) == 0
    or on (cluster, node)
    max by (cluster, node) (max_over_time(swapwarden_agent_state_followed[5m])) == 0
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: A node has no agent that answers.
    description: On node {{`{{`}} $labels.node }}, which is up, Swapwarden's agent has not been at work, or has not reached the API server, for 15 minutes. Without one, new pods get the kubelet's limits, and external writes to limits are not repaired.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenAgentSilent" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenAgentDegraded" .Values.prometheusRule.disabled) }}
- alert: SwapwardenAgentDegraded
  expr: |-
    max by (cluster, node) (swapwarden_agent_condition{type="Degraded",status="True"}) == 1
    or
    max by (cluster, node) (swapwarden_controller_node_problem{problem="SettingsRefused"}) == 1
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: An agent cannot do all of its work.
    description: 'On node {{`{{`}} $labels.node }}, Swapwarden''s agent has not been able to do all of its work for 15 minutes: the kernel refuses limits, so that pods may take more swap than they should, or the newest plan is invalid, or changes arrive late, or a setting of the node differs from its profile. `kubectl swap nodes` has the reason and the remedy.'
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenAgentDegraded" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenNriUnavailable" .Values.prometheusRule.disabled) }}
- alert: SwapwardenNriUnavailable
  expr: |-
    max by (cluster, node, reason) (swapwarden_agent_condition{type="NriUnavailable",status="True",reason!="NoSocket"}) == 1
    or
    max by (cluster, node, reason) (swapwarden_agent_condition{type="NriUnavailable",status="True",reason="NoSocket"}) == 1
      and on (cluster, node)
    max by (cluster, node) (max_over_time(swapwarden_agent_nri_connected[6h])) == 1
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: A container runtime does not hold swap limits any more.
    description: 'On node {{`{{`}} $labels.node }}, the container runtime has not held the swap limits of containers for 15 minutes ({{`{{`}} $labels.reason }}). The agent alone holds them: on a busy node a pod may take swap between an external write and its repair. With nri.mode required, containers of Disabled pods may not start.'
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenNriUnavailable" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenNriErrors" .Values.prometheusRule.disabled) }}
- alert: SwapwardenNriErrors
  expr: sum by (cluster, node) (increase(swapwarden_agent_nri_errors_total[1h])) > 0
  for: 1m
  labels:
    severity: warning
  annotations:
    summary: The process beside a container runtime fails at requests.
    description: On node {{`{{`}} $labels.node }}, swapwarden nri could not decide {{`{{`}} $value | printf "%.0f" }} requests of the container runtime within an hour. The containers start without a limit by it; the agent alone holds them.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenNriErrors" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenPodStuckAtMemoryHigh" .Values.prometheusRule.disabled) }}
- alert: SwapwardenPodStuckAtMemoryHigh
  expr: sum by (cluster, node) (increase(swapwarden_agent_throttle_trips_total[15m])) > 0
  for: 1m
  labels:
    severity: warning
  annotations:
    summary: A pod stood still at memory.high.
    description: On node {{`{{`}} $labels.node }}, the kernel throttled pods at their memory.high until their tasks stood still, {{`{{`}} $value | printf "%.0f" }} times in 15 minutes. The guard raises memory.high of such pods, unless memoryQoS.guard.action is Report, or memory.high is the kubelet's and memoryQoS.guard.kubelet is Report. The NodeSwapState's violations name them.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenPodStuckAtMemoryHigh" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenNoLeader" .Values.prometheusRule.disabled) }}
- alert: SwapwardenNoLeader
  expr: absent(swapwarden_leader == 1)
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: No controller leads.
    description: No instance of Swapwarden's controller has led for 10 minutes, or its metrics are not collected. Agents keep their last plans; pods that start now get no swap, or as swap.beforePlan of their node's profile says.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenNoLeader" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenPodsNotPlanned" .Values.prometheusRule.disabled) }}
- alert: SwapwardenPodsNotPlanned
  expr: max by (cluster, node) (swapwarden_controller_pods_left_out) > 0
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: A node has more pods than its plan has room for.
    description: 'On node {{`{{`}} $labels.node }}, {{`{{`}} $value | printf "%.0f" }} pods have not been in the plan for 5 minutes: the node has more of them, or larger ones, than one plan has room for. They have no swap, or what the kubelet gives them where swap.beforePlan of their profile is Unmanaged. Kubelets run far fewer pods, so most of them never run, and somebody may make them on purpose.'
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenPodsNotPlanned" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenCrdOutdated" .Values.prometheusRule.disabled) }}
- alert: SwapwardenCrdOutdated
  expr: max by (cluster) (max_over_time(swapwarden_controller_crd_fields_missing[10m])) == 1
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: The CustomResourceDefinitions are older than the controller.
    description: The CustomResourceDefinition of NodeSwapStates has lacked fields or values that the controller writes for 15 minutes. These fields are not enforced; all others are. Apply the definitions of the controller's version.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenCrdOutdated" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenControllerPartFailing" .Values.prometheusRule.disabled) }}
- alert: SwapwardenControllerPartFailing
  expr: sum by (cluster, part) (increase(swapwarden_controller_part_faults_total[15m])) > 2
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: A part of the controller fails repeatedly.
    description: The part {{`{{`}} $labels.part }} of Swapwarden's controller has failed {{`{{`}} $value | printf "%.0f" }} times in 15 minutes with an unexpected error. It is restarted each time, and planning continues.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenControllerPartFailing" | quote }}
    {{- end }}
{{- end }}
{{- if and (eq .Values.admission.mode "Webhook") (not (has "SwapwardenClockDiffers" .Values.prometheusRule.disabled)) }}
- alert: SwapwardenClockDiffers
  expr: max by (cluster) (abs(swapwarden_controller_clock_difference_seconds)) > 3600
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: The controller's clock and the API server's differ.
    description: The clock of the leading controller's node and the API server's have differed by {{`{{`}} $value | humanizeDuration }} for 10 minutes. The webhook's certificate is not renewed until they agree.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenClockDiffers" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenRestoring" .Values.prometheusRule.disabled) }}
- alert: SwapwardenRestoring
  expr: max by (cluster) (swapwarden_controller_restoring) == 1
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: Nodes restore the values from before Swapwarden; no policy is enforced.
    description: The ConfigMap swapwarden-uninstall has ordered for 10 minutes that all nodes restore the values from before Swapwarden. Pods that must not swap may swap.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenRestoring" | quote }}
    {{- end }}
{{- end }}
{{- if and (eq .Values.admission.mode "Webhook") (not (has "SwapwardenWebhookFailing" .Values.prometheusRule.disabled)) }}
- alert: SwapwardenWebhookFailing
  expr: |-
    sum by (cluster, name) (
      increase(apiserver_admission_webhook_rejection_count{name=~"(.+\\.)?pods\\.swapwarden\\.dev",error_type!="no_error"}[5m])
      or
      increase(apiserver_admission_webhook_fail_open_count{name=~"(.+\\.)?pods\\.swapwarden\\.dev"}[5m])
    )
      > 0
  for: 10m
  labels:
    severity: critical
  annotations:
    summary: API servers cannot call the webhook.
    description: API servers have failed {{`{{`}} $value | printf "%.0f" }} times in 5 minutes to call the webhook {{`{{`}} $labels.name }}. Pods that count on it are refused, or with failurePolicy Ignore admitted without their namespace's default.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenWebhookFailing" | quote }}
    {{- end }}
{{- end }}
{{- if and (eq .Values.admission.mode "Webhook") (not (has "SwapwardenWebhookDown" .Values.prometheusRule.disabled)) }}
- alert: SwapwardenWebhookDown
  expr: absent(swapwarden_webhook_certificate_expiry_timestamp_seconds)
  for: 10m
  labels:
    severity: critical
  annotations:
    summary: No instance of the webhook runs.
    description: No instance of Swapwarden's webhook has run for 10 minutes, or their metrics are not collected. Pods that count on it are refused, or with failurePolicy Ignore admitted without their namespace's default.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenWebhookDown" | quote }}
    {{- end }}
{{- end }}
{{- if and (eq .Values.admission.mode "Webhook") (not (has "SwapwardenCertificateNearExpiry" .Values.prometheusRule.disabled)) }}
- alert: SwapwardenCertificateNearExpiry
  expr: |-
    min by (cluster) (swapwarden_webhook_certificate_expiry_timestamp_seconds > 0) - time()
      < {{ $.Values.prometheusRule.thresholds.certificateDays }} * 24 * 3600
  for: 1h
  labels:
    severity: warning
  annotations:
    summary: The webhook's certificate expires soon.
    description: The certificate that Swapwarden's webhook serves expires in {{`{{`}} $value | humanizeDuration }}; it should have been renewed before. Once it has expired, API servers can no longer call the webhook.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenCertificateNearExpiry" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenNodeThrashing" .Values.prometheusRule.disabled) }}
- alert: SwapwardenNodeThrashing
  expr: |-
    max by (cluster, node) (rate(swapwarden_node_swap_in_bytes_total[5m])) > {{ $.Values.prometheusRule.thresholds.swapTrafficMebibytesPerSecond }} * 1024 * 1024
      and on (cluster, node)
    max by (cluster, node) (rate(swapwarden_node_swap_out_bytes_total[5m])) > {{ $.Values.prometheusRule.thresholds.swapTrafficMebibytesPerSecond }} * 1024 * 1024
      and on (cluster, node)
    max by (cluster, node) (rate(swapwarden_node_pressure_stalled_seconds_total{resource="memory",kind="full"}[5m]))
      > {{ $.Values.prometheusRule.thresholds.memoryStalledRatio }}
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: A node moves memory to swap and back instead of working.
    description: Node {{`{{`}} $labels.node }} reads {{`{{`}} $value | humanize1024 }}B/s back from swap while it writes more out, and for more than a share of {{ $.Values.prometheusRule.thresholds.memoryStalledRatio }} of the time nothing runs because all wait for memory.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenNodeThrashing" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenSwapNearlyFull" .Values.prometheusRule.disabled) }}
- alert: SwapwardenSwapNearlyFull
  expr: |-
    max by (cluster, node) (swapwarden_node_swap_usage_bytes)
      / on (cluster, node)
    max by (cluster, node) (swapwarden_node_swap_total_bytes)
      > {{ $.Values.prometheusRule.thresholds.swapFullRatio }}
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: A node's swap is nearly full.
    description: '{{`{{`}} $value | humanizePercentage }} of the swap of node {{`{{`}} $labels.node }} is in use. When it is full, the OOM killer takes over, and pods that reach their memory limit are killed instead of swapped.'
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenSwapNearlyFull" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenHeadroomLow" .Values.prometheusRule.disabled) }}
- alert: SwapwardenHeadroomLow
  expr: |-
    min by (cluster, node) (swapwarden_node_memory_headroom_bytes)
      / on (cluster, node)
    max by (cluster, node) (swapwarden_node_memory_total_bytes)
      < {{ $.Values.prometheusRule.thresholds.headroomRatio }}
      and on (cluster, node)
    max by (cluster, node) (swapwarden_node_swap_total_bytes) > 0
  for: 1m
  labels:
    severity: warning
  annotations:
    summary: A node with swap is nearly out of memory.
    description: Only {{`{{`}} $value | humanizePercentage }} of the memory of node {{`{{`}} $labels.node }} can still be taken, with all that its pods can swap. Below that the OOM killer ends processes, often before the kubelet evicts.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenHeadroomLow" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenMemoryPressure" .Values.prometheusRule.disabled) }}
- alert: SwapwardenMemoryPressure
  expr: max by (cluster, node, signal) (swapwarden_node_memory_pressure{scope!="pod"}) == 1
  for: 2m
  labels:
    severity: warning
  annotations:
    summary: A node is under memory pressure, by the thresholds of its profile.
    description: The signal {{`{{`}} $labels.signal }} of spec.pressure has been on for 2 minutes on node {{`{{`}} $labels.node }}. An OOM kill is near (headroom), or all tasks wait for memory at once for much of the time (stall).
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenMemoryPressure" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenEvictionsHeld" .Values.prometheusRule.disabled) }}
- alert: SwapwardenEvictionsHeld
  expr: max by (cluster, node) (swapwarden_controller_node_evictions_held{reason!="Settling"}) == 1
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: A node under memory pressure needs an eviction, and no pod can be evicted.
    description: 'Node {{`{{`}} $labels.node }} has been under memory pressure for 10 minutes, and its profile has pods evicted, but none was: all are spared, disruption budgets keep them, a limit is reached, or the API server refuses. The kubelet''s eviction and the OOM killer remain.'
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenEvictionsHeld" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenReclaimHeld" .Values.prometheusRule.disabled) }}
- alert: SwapwardenReclaimHeld
  expr: |-
    sum by (cluster, node, result) (increase(swapwarden_agent_reclaim_looks_total{result=~"WritesSpent|SwapKept|NodePressure"}[30m])) > 0
      unless on (cluster, node)
    sum by (cluster, node) (increase(swapwarden_agent_reclaim_looks_total{result="Step"}[30m])) > 0
  for: 30m
  labels:
    severity: info
  annotations:
    summary: 'Idle memory of pods stays where it is: a bound of the node is reached.'
    description: 'On node {{`{{`}} $labels.node }}, no idle memory has been moved to swap for an hour, although pods ask for it: {{`{{`}} $labels.result }}. WritesSpent: the bytes of 24 hours are used up. SwapKept: no more swap is free than is kept. NodePressure: the node is short of memory already.'
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenReclaimHeld" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenLimitedSwapNotEngaging" .Values.prometheusRule.disabled) }}
- alert: SwapwardenLimitedSwapNotEngaging
  expr: max by (cluster, node) (swapwarden_agent_condition{type="KubeletSetsNoLimits",status="True"}) == 1
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: A kubelet with LimitedSwap sets no limits.
    description: 'The kubelet of node {{`{{`}} $labels.node }} is configured with LimitedSwap, but the containers of its Burstable pods have no swap limit at all: they can take all of the node''s swap.'
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenLimitedSwapNotEngaging" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenSwapHidesMemoryLimit" .Values.prometheusRule.disabled) }}
- alert: SwapwardenSwapHidesMemoryLimit
  expr: |-
    (
      max by (cluster, node, pod_uid) (swapwarden_pod_swap_usage_bytes) > {{ $.Values.prometheusRule.thresholds.hiddenMebibytes }} * 1024 * 1024
        and on (cluster, node, pod_uid)
      max by (cluster, node, pod_uid) (rate(swapwarden_pod_memory_events_total{event="max"}[10m])) > {{ $.Values.prometheusRule.thresholds.limitHitsPerSecond }}
    )
    * on (cluster, pod_uid) group_left (namespace, pod)
      max by (cluster, pod_uid, namespace, pod) (label_replace(kube_pod_info, "pod_uid", "$1", "uid", "(.+)"))
    or on (cluster, pod_uid)
    (
      max by (cluster, node, pod_uid) (swapwarden_pod_swap_usage_bytes) > {{ $.Values.prometheusRule.thresholds.hiddenMebibytes }} * 1024 * 1024
        and on (cluster, node, pod_uid)
      max by (cluster, node, pod_uid) (rate(swapwarden_pod_memory_events_total{event="max"}[10m])) > {{ $.Values.prometheusRule.thresholds.limitHitsPerSecond }}
    )
  for: 30m
  labels:
    severity: info
  annotations:
    summary: A container of a pod is at its memory limit, and swap hides it.
    description: '{{`{{`}} if $labels.pod }}Pod {{`{{`}} $labels.namespace }}/{{`{{`}} $labels.pod }}{{`{{`}} else }}The pod with UID {{`{{`}} $labels.pod_uid }}{{`{{`}} end }} on node {{`{{`}} $labels.node }}, or a container of it, has hit its memory limit more than {{ $.Values.prometheusRule.thresholds.limitHitsPerSecond }} times a second for half an hour and continues only because {{`{{`}} $value | humanize1024 }}B of the pod are in swap. It is slower than necessary, and is killed when its swap is used up.'
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenSwapHidesMemoryLimit" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenSwapStallsSystem" .Values.prometheusRule.disabled) }}
- alert: SwapwardenSwapStallsSystem
  expr: |-
    max by (cluster, node) (rate(swapwarden_node_swap_in_bytes_total[5m]) + rate(swapwarden_node_swap_out_bytes_total[5m])) > {{ $.Values.prometheusRule.thresholds.swapTrafficMebibytesPerSecond }} * 1024 * 1024
      and on (cluster, node)
    max by (cluster, node) (rate(swapwarden_slice_pressure_stalled_seconds_total{slice="system.slice",kind="full"}[5m]))
      > {{ $.Values.prometheusRule.thresholds.systemStalledRatio }}
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: A node's system daemons wait for disks or memory while it swaps.
    description: 'Node {{`{{`}} $labels.node }} moves {{`{{`}} $value | humanize1024 }}B/s to and from swap, and for more than a share of {{ $.Values.prometheusRule.thresholds.systemStalledRatio }} of the time nothing in system.slice runs because all there wait for disks or memory: kubelet, container runtime and sshd, as a rule.'
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenSwapStallsSystem" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenControllerBlind" .Values.prometheusRule.disabled) }}
- alert: SwapwardenControllerBlind
  expr: |-
    time() - max by (cluster, resource) (swapwarden_informer_last_event_timestamp_seconds) > 300
    or
    max by (cluster, resource) (swapwarden_informer_synced) == 0
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: No controller sees changes.
    description: 'No instance of Swapwarden''s controller has been able to follow {{`{{`}} $labels.resource }} for 5 minutes or more. Changes there are not planned: pods that start now get no swap, or as swap.beforePlan of their node''s profile says.'
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenControllerBlind" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenInformerFailing" .Values.prometheusRule.disabled) }}
- alert: SwapwardenInformerFailing
  expr: sum by (cluster, resource) (increase(swapwarden_informer_errors_total{kind=~"request|internal"}[15m])) > 10
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: Controllers repeatedly fail to follow a resource.
    description: Lists and watches of {{`{{`}} $labels.resource }} by Swapwarden's controllers have failed {{`{{`}} $value | printf "%.0f" }} times in 15 minutes. Changes there are planned late.
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenInformerFailing" | quote }}
    {{- end }}
{{- end }}
{{- if not (has "SwapwardenObjectLeftOut" .Values.prometheusRule.disabled) }}
- alert: SwapwardenObjectLeftOut
  expr: max by (cluster, resource) (swapwarden_informer_objects_left_out) > 0
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: Objects are left out because they cannot be decoded.
    description: '{{`{{`}} $value | printf "%.0f" }} of the cluster''s {{`{{`}} $labels.resource }} cannot be decoded by Swapwarden''s controller. Their last valid versions stay in effect; new ones have no effect. The controller''s log names them.'
    {{- with $.Values.prometheusRule.runbookUrl }}
    runbook_url: {{ . | replace "{alert}" "SwapwardenObjectLeftOut" | quote }}
    {{- end }}
{{- end }}
{{- end -}}
