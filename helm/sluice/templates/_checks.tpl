{{/*
Cross-field rules that JSON Schema cannot state. Each refuses the render with what is wrong, why, and what to set.
One line per rule in scripts/packaging/refusals.mjs proves that it fires.
*/}}
{{- define "sluice.checks" -}}
{{- $facts := include "sluice.facts" . | fromJson -}}
{{- $v := .Values -}}
{{- $server := default dict $v.config.server -}}

{{- if and $v.autoscaling.hpa $v.autoscaling.keda -}}
{{- fail "autoscaling.hpa and autoscaling.keda exclude each other: two autoscalers would fight over the replicas. Set one of them to false." -}}
{{- end -}}
{{- if and $facts.autoscaled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas (%d) is over autoscaling.maxReplicas (%d)." (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if and $facts.autoscaled (lt (int $v.autoscaling.scaleDownWindowSeconds) (int $v.autoscaling.scaleDownPeriodSeconds)) -}}
{{- fail (printf "autoscaling.scaleDownWindowSeconds (%d) is under autoscaling.scaleDownPeriodSeconds (%d): pods that were added within the period would leave several at once. Raise the window, or shorten the period." (int $v.autoscaling.scaleDownWindowSeconds) (int $v.autoscaling.scaleDownPeriodSeconds)) -}}
{{- end -}}
{{- if and (not $facts.redis) (or $facts.autoscaled (gt (int $facts.replicas) 1)) -}}
{{- fail "More than one replica needs Redis: without it each pod would allow the whole limit. Set redis.existingSecret.name (or redis.url), or replicaCount: 1 without autoscaling." -}}
{{- end -}}

{{- range $labels := list "commonLabels" "podLabels" -}}
{{- range list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" -}}
{{- if hasKey (get $v $labels) . -}}
{{- fail (printf "%s holds %s, which the chart sets itself and by which it finds its pods. Use another label; nameOverride changes the name." $labels .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- $sources := 0 -}}
{{- range list $v.redis.url ($v.redis.existingSecret).name $v.redis.development.enabled -}}{{- if . -}}{{- $sources = add1 $sources -}}{{- end -}}{{- end -}}
{{- if gt (int $sources) 1 -}}
{{- fail "Only one of redis.url, redis.existingSecret.name and redis.development.enabled may be set." -}}
{{- end -}}
{{- if regexMatch "://[^/@]*:[^/@$]+@" (printf "%s %s" $v.redis.url (default "" (default dict $v.config.redis).url)) -}}
{{- fail "The Redis URL holds a password, which would end up readable in the release. Put the whole URL into a Secret and name it in redis.existingSecret.name." -}}
{{- end -}}
{{- if and $facts.redis (not ($v.privacy.labelKey.existingSecret).name) (not (default dict $v.config.privacy).labelKey) (not $v.existingConfigMap) -}}
{{- fail "Redis needs a label key that all replicas share. Create a Secret with 32 random bytes and name it in privacy.labelKey.existingSecret.name." -}}
{{- end -}}

{{- if eq (int $facts.port) (int $facts.adminPort) -}}
{{- fail "config.server.port and config.server.adminPort are the same: the admin port must never be reachable where the data port is." -}}
{{- end -}}
{{- if lt (int $facts.grace) (int $facts.graceNeeded) -}}
{{- fail (printf "drain.terminationGracePeriodSeconds (%d) is too short: drain.delaySeconds (%d) + drain (%d) + 5 = %d. Kubernetes would kill calls that the drain still finishes. Raise it, leave it out, or lower config.server.drainSeconds." (int $facts.grace) (int $facts.delay) (int $facts.drain) (int $facts.graceNeeded)) -}}
{{- end -}}
{{- if and $facts.profile (gt (int $facts.hop) 0) (lt (int $facts.hop) (int $facts.hopNeeded)) -}}
{{- $part := ternary (printf "timeouts.upstreamSeconds (%d)" (int $v.timeouts.upstreamSeconds)) (printf "timeouts.firstByteSeconds (%d)" (int $v.timeouts.firstByteSeconds)) (eq $facts.hopCounts "whole") -}}
{{- fail (printf "timeouts.profile %s cuts calls after %d s (%s), but a call may wait maxWaitSeconds (%d) plus %s = %d s. Lower limits.maxWaitSeconds, or raise the load balancer's time-out and state it in timeouts.hopSeconds." $facts.profile (int $facts.hop) (ternary "whole response" "silence" (eq $facts.hopCounts "whole")) (int $facts.maxWait) $part (int $facts.hopNeeded)) -}}
{{- end -}}
{{- if and (eq $facts.profile "alb") (gt (int $facts.hop) 4000) -}}
{{- fail (printf "An AWS load balancer's idle time-out ends at 4000 s, %d is asked for. Lower timeouts.hopSeconds or timeouts.upstreamSeconds." (int $facts.hop)) -}}
{{- end -}}
{{- if and (eq $facts.profile "alb") (le (int $facts.keepAlive) (int $facts.hop)) -}}
{{- fail (printf "config.server.keepAliveSeconds (%d) must be over the load balancer's idle time-out (%d), or it reuses connections that are just being closed and answers 502." (int $facts.keepAlive) (int $facts.hop)) -}}
{{- end -}}

{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) -}}
{{- fail "httpRoute.enabled needs httpRoute.parentRefs: the Gateway that the route belongs to." -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
{{- fail "ingress.enabled needs ingress.hosts: an Ingress without a host answers for every name of the controller." -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled $v.metrics.podMonitor.enabled -}}
{{- fail "metrics.serviceMonitor.enabled and metrics.podMonitor.enabled exclude each other: every series would be scraped twice and every sum doubled." -}}
{{- end -}}

{{- if not $v.existingConfigMap -}}
{{- $known := keys (default dict $v.config.upstreams) | sortAlpha -}}
{{- range $workspace, $of := default dict $v.config.workspaces -}}
{{- $named := default list $of.upstreams -}}
{{- range $key := list "requestsPerMinute" "requestsPerDay" "credentials" -}}
{{- $each := get $of $key -}}
{{- if kindIs "map" $each -}}{{- $named = concat $named (keys $each) -}}{{- end -}}
{{- end -}}
{{- range $name := $named -}}
{{- if not (or (has $name $known) (hasPrefix "${" (toString $name))) -}}
{{- fail (printf "config.workspaces.%s names the upstream %s, which config.upstreams does not have. It has %s." $workspace $name (default "none" (join ", " $known))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- $overlap := list -}}
{{- range $name, $_ := $v.secretEnv -}}{{- if hasKey $v.env $name -}}{{- $overlap = append $overlap $name -}}{{- end -}}{{- end -}}
{{- if $overlap -}}
{{- fail (printf "%s is in env and in secretEnv. Keep one." (join ", " $overlap)) -}}
{{- end -}}
{{- range list "REDIS_URL" "SLUICE_LABEL_KEY" -}}
{{- $set := ternary (or $v.redis.url ($v.redis.existingSecret).name $v.redis.development.enabled) ($v.privacy.labelKey.existingSecret).name (eq . "REDIS_URL") -}}
{{- if and $set (or (hasKey $v.env .) (hasKey $v.secretEnv .)) -}}
{{- fail (printf "%s is set by the chart (redis, privacy) and in env or secretEnv. Keep one." .) -}}
{{- end -}}
{{- end -}}

{{- if not (or $v.existingConfigMap $v.extraEnv $v.extraEnvFrom) -}}
{{- $missing := list -}}
{{- range regexFindAll "\\$\\{[A-Za-z_][A-Za-z0-9_]*" (include "sluice.config" . | replace "$${" "") -1 -}}
{{- $name := trimPrefix "${" . -}}
{{- $given := or (hasKey $v.env $name) (hasKey $v.secretEnv $name) (and (eq $name "REDIS_URL") (or $v.redis.url ($v.redis.existingSecret).name $v.redis.development.enabled)) (and (eq $name "SLUICE_LABEL_KEY") ($v.privacy.labelKey.existingSecret).name) -}}
{{- if not $given -}}{{- $missing = append $missing $name -}}{{- end -}}
{{- end -}}
{{- if $missing -}}
{{- fail (printf "config reads ${%s}, which no pod has. Add it to secretEnv: {%s: {secret: NAME, key: KEY}}." (join "}, ${" ($missing | uniq)) (first $missing)) -}}
{{- end -}}
{{- end -}}
{{- end }}
