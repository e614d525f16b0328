{{/*
What follows from the values, computed in one place as JSON: every template and every check reads the same numbers.
  redis, autoscaled, replicas, port, adminPort, maxWait, maxWaitCeiling, drain, delay, sleepHook, grace, graceNeeded,
  profile, hop (0 = no limit), hopCounts (whole | silence), hopNeeded, keepAlive, redisPorts (those stated, and those of the URL)
Times are whole seconds.
*/}}
{{- define "sluice.facts" -}}
{{- $config := .Values.config -}}
{{- $server := default dict $config.server -}}
{{- $configRedis := default dict $config.redis -}}
{{- $redis := or .Values.redis.url (.Values.redis.existingSecret).name .Values.redis.development.enabled $configRedis.url | not | not -}}
{{- $redisPorts := list -}}
{{- range .Values.networkPolicy.redisPorts -}}{{- $redisPorts = append $redisPorts (int .) -}}{{- end -}}
{{- /* Of `rediss://user:password@host:6380,host:6381/0` the ports of the hosts. */ -}}
{{- $redisUrl := default (default "" $configRedis.url) .Values.redis.url -}}
{{- $redisHosts := regexReplaceAll "^[^/]*//([^/]*@)?([^/?]*).*$" $redisUrl "${2}" -}}
{{- range regexFindAll ":[0-9]+(,|$)" $redisHosts -1 -}}{{- $redisPorts = append $redisPorts (int (trimAll ":," .)) -}}{{- end -}}
{{- if contains "+sentinel:" $redisUrl -}}{{- $redisPorts = append $redisPorts 26379 -}}{{- end -}}
{{- $autoscaled := or .Values.autoscaling.hpa .Values.autoscaling.keda -}}
{{- $replicas := ternary 2 1 $redis -}}
{{- if $autoscaled -}}{{- $replicas = int .Values.autoscaling.minReplicas -}}
{{- else if not (kindIs "invalid" .Values.replicaCount) -}}{{- $replicas = int .Values.replicaCount -}}{{- end -}}
{{- /* A wait stands on the upstream, in its limits, or in server for all of them; a ceiling below it lowers it. The defaults are those of src/config/defaults.ts. */ -}}
{{- $waits := dict "maxWaitSeconds" 75 "maxWaitCeilingSeconds" 600 -}}
{{- $waits = merge (pick $server "maxWaitSeconds" "maxWaitCeilingSeconds") $waits -}}
{{- $ceiling := ternary 0 (int (ceil $waits.maxWaitCeilingSeconds)) (not (empty $config.upstreams)) -}}
{{- $maxWait := min (int (ceil $waits.maxWaitSeconds)) $ceiling -}}
{{- range $name, $upstream := $config.upstreams -}}
{{- $own := merge (deepCopy (default dict $upstream)) (deepCopy (default dict (default dict $upstream).limits)) $waits -}}
{{- $maxWait = max $maxWait (min (int (ceil $own.maxWaitSeconds)) (int (ceil $own.maxWaitCeilingSeconds))) -}}
{{- $ceiling = max $ceiling (int (ceil $own.maxWaitCeilingSeconds)) -}}
{{- end -}}
{{- $upstreamSeconds := int .Values.timeouts.upstreamSeconds -}}
{{- $whole := int (add $maxWait $upstreamSeconds) -}}
{{- $drain := $whole -}}
{{- if hasKey $server "drainSeconds" -}}{{- $drain = int (ceil $server.drainSeconds) -}}{{- end -}}
{{- $delay := int .Values.drain.delaySeconds -}}
{{- $graceNeeded := int (add $delay $drain 5) -}}
{{- $grace := $graceNeeded -}}
{{- if not (kindIs "invalid" .Values.drain.terminationGracePeriodSeconds) -}}{{- $grace = int .Values.drain.terminationGracePeriodSeconds -}}{{- end -}}
{{- $sleepHook := and (gt $delay 0) (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $profile := .Values.timeouts.profile -}}
{{- $hopCounts := ternary "whole" "silence" (or (eq $profile "envoy") (eq $profile "gclb")) -}}
{{- $hop := $whole -}}
{{- if not (kindIs "invalid" .Values.timeouts.hopSeconds) -}}{{- $hop = int .Values.timeouts.hopSeconds -}}
{{- else if eq $profile "envoy" -}}{{- $hop = 0 -}}
{{- else if eq $profile "cloudfront" -}}{{- $hop = 30 -}}
{{- else if eq $profile "cloudflare" -}}{{- $hop = 100 -}}{{- end -}}
{{- $hopNeeded := ternary $whole (int (add $maxWait .Values.timeouts.firstByteSeconds)) (eq $hopCounts "whole") -}}
{{- $keepAlive := 75 -}}
{{- if eq $profile "gclb" -}}{{- $keepAlive = 620 -}}
{{- else if eq $profile "alb" -}}{{- $keepAlive = int (add $hop 15) -}}{{- end -}}
{{- if hasKey $server "keepAliveSeconds" -}}{{- $keepAlive = int (ceil $server.keepAliveSeconds) -}}{{- end -}}
{{- dict "redis" $redis "autoscaled" $autoscaled "replicas" $replicas
  "port" (int (default 8080 $server.port)) "adminPort" (int (default 9090 $server.adminPort))
  "maxWait" $maxWait "maxWaitCeiling" $ceiling "drain" $drain "delay" $delay "sleepHook" $sleepHook "grace" $grace "graceNeeded" $graceNeeded
  "profile" $profile "hop" $hop "hopCounts" $hopCounts "hopNeeded" $hopNeeded "keepAlive" $keepAlive
  "redisPorts" (uniq $redisPorts) | toJson -}}
{{- end }}

{{/*
sluice.yaml: the user's config, which wins, plus what the chart knows. The gateway refuses to start without an upstream; until one
is configured, an origin that cannot exist stands in. Without a workspace every call is answered 401.
*/}}
{{- define "sluice.config" -}}
{{- $facts := include "sluice.facts" . | fromJson -}}
{{- $config := deepCopy .Values.config -}}
{{- if not $config.upstreams -}}{{- $_ := set $config "upstreams" (dict "unconfigured" (dict "origins" (list "https://upstream.invalid"))) -}}{{- end -}}
{{- if not $config.workspaces -}}{{- $_ := set $config "workspaces" dict -}}{{- end -}}
{{- /* The names of the admin Service, by which `helm test` and a Prometheus with static targets ask. */ -}}
{{- $admin := printf "%s-admin" (include "sluice.fullname" .) -}}
{{- $adminNames := list $admin (printf "%s.%s" $admin .Release.Namespace) (printf "%s.%s.svc" $admin .Release.Namespace) (printf "%s.%s.svc.cluster.local" $admin .Release.Namespace) -}}
{{- $adminNames = concat $adminNames (default list (default dict $config.server).adminNames) | uniq -}}
{{- $server := dict "host" "0.0.0.0" "adminHost" "0.0.0.0" "port" $facts.port "adminPort" $facts.adminPort
  "drainSeconds" (ternary $facts.drain (int (add $facts.drain $facts.delay)) $facts.sleepHook) "drainDelaySeconds" (ternary 0 $facts.delay $facts.sleepHook) "keepAliveSeconds" $facts.keepAlive -}}
{{- $_ := set $config "server" (merge (dict "adminNames" $adminNames) (default dict $config.server) $server) -}}
{{- if $facts.redis -}}
{{- /* The most pods there can be: without a number of its own, what the Deployment states, or what the autoscaler may reach. */ -}}
{{- $most := ternary .Values.autoscaling.maxReplicas (include "sluice.replicas" . | fromJson).count $facts.autoscaled -}}
{{- if not (kindIs "invalid" .Values.redis.replicas) -}}{{- $most = .Values.redis.replicas -}}{{- end -}}
{{- $redis := dict "url" "${REDIS_URL}" "whenDown" .Values.redis.whenDown "replicas" (int $most) -}}
{{- $_ := set $config "redis" (merge (default dict $config.redis) $redis) -}}
{{- end -}}
{{- if (.Values.privacy.labelKey.existingSecret).name -}}
{{- $_ := set $config "privacy" (merge (default dict $config.privacy) (dict "labelKey" "${SLUICE_LABEL_KEY}")) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{/*
What the process reads once: a change needs new pods. Upstreams, workspaces and the log level are reloaded, so they are left out; so is
redis.replicas, which a pod no longer uses once it has reached Redis: another number of pods must not drain every held call.
*/}}
{{- define "sluice.restartChecksum" -}}
{{- $config := omit (include "sluice.config" . | fromYaml) "upstreams" "workspaces" "log" -}}
{{- with $config.redis -}}{{- $_ := set $config "redis" (omit . "replicas") -}}{{- end -}}
{{- $config | toJson | sha256sum -}}
{{- end }}
