{{/*
How many pods the Deployment states, as JSON: `count` (null = `replicas` is left out) and `mark` (the annotation that tells
the next upgrade what this one did; empty without an autoscaler).

Taking `replicas` out of a manifest that had it makes the API server set 1, and the pods go. So a switch of the autoscaler,
on or off, states the count that runs. `replicas` is left out only where that removes nothing: the last manifest had none,
or the field belongs to an autoscaler and the release is applied server-side. A lookup that finds nothing (an installation,
`helm template`) leaves it out under an autoscaler.
*/}}
{{- define "sluice.replicas" -}}
{{- $facts := include "sluice.facts" . | fromJson -}}
{{- $live := default dict (lookup "apps/v1" "Deployment" .Release.Namespace (include "sluice.fullname" .)) -}}
{{- $metadata := default dict $live.metadata -}}
{{- $running := int (default 0 (default dict $live.spec).replicas) -}}
{{- $lastMark := default "" (get (default dict $metadata.annotations) "sluice/replicas") -}}
{{- $serverSide := false -}}
{{- $scaledByOthers := false -}}
{{- range default list $metadata.managedFields -}}
{{- $fields := default dict (get (default dict .fieldsV1) "f:spec") -}}
{{- if and (eq .operation "Apply") (hasKey $fields "f:selector") -}}{{- $serverSide = true -}}{{- end -}}
{{- if and (eq (default "" .subresource) "scale") (hasKey $fields "f:replicas") -}}{{- $scaledByOthers = true -}}{{- end -}}
{{- end -}}
{{- $count := int $facts.replicas -}}
{{- $mark := "" -}}
{{- if $facts.autoscaled -}}
{{- if or (not $live) (eq $lastMark "left-out") (and $serverSide $scaledByOthers) -}}
{{- $count = 0 -}}
{{- $mark = "left-out" -}}
{{- else -}}
{{- $count = max $running $count -}}
{{- $mark = "stated" -}}
{{- end -}}
{{- else if and $facts.redis (or $lastMark (kindIs "invalid" .Values.replicaCount)) -}}
{{- $count = max $running $count -}}
{{- end -}}
{{- dict "count" (ternary nil $count (eq $mark "left-out")) "mark" $mark | toJson -}}
{{- end }}
