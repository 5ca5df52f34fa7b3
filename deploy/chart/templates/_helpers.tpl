{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "tributary.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tributary.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tributary.labels" -}}
{{ include "tributary.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "tributary.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "tributary.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "tributary.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/*
The components of a release, as JSON: name, roles that run in it, whose addresses it needs, whether it keeps data, how
many replicas it has. `server` is all roles in one process.
*/}}
{{- define "tributary.components" -}}
{{- if eq .Values.mode "all-in-one" -}}
{{- list (dict "name" "server" "roles" list "calls" list "data" true "spill" true "stateful" true "settings" .Values.allInOne) | toJson -}}
{{- else -}}
{{- $r := .Values.roles -}}
{{- $readers := ternary (list "timeline" "sources") (list "timeline") $r.sources.enabled -}}
{{- $all := list
  (dict "name" "timeline" "calls" list "data" false "spill" true "stateful" false "settings" $r.timeline)
  (dict "name" "merge" "calls" (append $readers "writer") "data" false "spill" true "stateful" false "settings" $r.merge)
  (dict "name" "writer" "calls" list "data" false "spill" true "stateful" false "settings" $r.writer)
  (dict "name" "checkpoint" "calls" list "data" true "spill" false "stateful" true "settings" $r.checkpoint)
  (dict "name" "coordinator" "calls" (concat $readers (list "checkpoint" "merge")) "data" true "spill" true "stateful" true "settings" $r.coordinator)
-}}
{{- if $r.sources.enabled -}}
{{- $all = append $all (dict "name" "sources" "calls" list "data" false "spill" true "stateful" false "settings" $r.sources) -}}
{{- end -}}
{{- $all | toJson -}}
{{- end -}}
{{- end -}}

{{/* Which component answers clients. */}}
{{- define "tributary.front" -}}
{{- ternary "server" "coordinator" (eq .Values.mode "all-in-one") -}}
{{- end -}}

{{/* Name of a component's objects; that of the front is the release's own, for its clients. */}}
{{- define "tributary.service" -}}
{{- if eq .component (include "tributary.front" .root) -}}
{{- include "tributary.fullname" .root -}}
{{- else -}}
{{- printf "%s-%s" (include "tributary.fullname" .root) .component -}}
{{- end -}}
{{- end -}}

{{/* A size of the server (`4GiB`) or of Kubernetes (`4Gi`, `512M`) in bytes, as a number without a fraction. */}}
{{- define "tributary.bytes" -}}
{{- $text := . | toString | trimSuffix "B" -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- $factors := dict "" 1 "k" 1000 "K" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if not (hasKey $factors $unit) -}}
{{- fail (printf "%s is no size: write it as 4GiB, or 4Gi where Kubernetes reads it" .) -}}
{{- end -}}
{{- mulf $number (get $factors $unit) | int64 -}}
{{- end -}}

{{/* Refuses memory limits that the counted memory of batches fills already. */}}
{{- define "tributary.checkMemory" -}}
{{- $counted := include "tributary.bytes" .Values.server.memory | int64 -}}
{{- $places := ternary (dict "allInOne" .Values.allInOne) (dict "roles.merge" .Values.roles.merge) (eq .Values.mode "all-in-one") -}}
{{- range $where, $settings := $places -}}
{{- $limit := include "tributary.bytes" $settings.resources.limits.memory | int64 -}}
{{- if le $limit $counted -}}
{{- fail (printf "%s.resources.limits.memory (%s) must be larger than server.memory (%s): what is not counted comes on top, or the pod is killed in the middle of a batch" $where $settings.resources.limits.memory $.Values.server.memory) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* How addresses of servers begin. */}}
{{- define "tributary.scheme" -}}
{{- ternary "https" "http" (not (empty .Values.security.tlsSecret)) -}}
{{- end -}}

{{/* Whether anybody is asked who calls: `true`, or nothing. */}}
{{- define "tributary.asks" -}}
{{- if or .Values.security.authSecret .Values.security.clientCertificates -}}true{{- end -}}
{{- end -}}

{{/* Refuses what the server would refuse, or what would leave roles without their callers. */}}
{{- define "tributary.checkSecurity" -}}
{{- $asks := include "tributary.asks" . -}}
{{- if and $asks (not .Values.security.tlsSecret) -}}
{{- fail "security.authSecret and security.clientCertificates need security.tlsSecret: tokens would cross the network in the clear" -}}
{{- end -}}
{{- if and $asks (eq .Values.mode "roles") (not .Values.security.clusterKeySecret) -}}
{{- fail "mode roles needs security.clusterKeySecret once anybody is asked who calls: by it the roles know each other" -}}
{{- end -}}
{{- if and .Values.security.clusterKeySecret (not $asks) -}}
{{- fail "security.clusterKeySecret is of no use without security.authSecret or security.clientCertificates" -}}
{{- end -}}
{{- if and .Values.pipelines .Values.security.clientCertificates (not .Values.security.authSecret) -}}
{{- fail "pipelines have no certificate of a client, and with security.clientCertificates alone the server refuses every one of their pods: set security.authSecret and security.pipelineTokenSecret as well" -}}
{{- end -}}
{{- if and .Values.pipelines .Values.security.authSecret (not .Values.security.pipelineTokenSecret) -}}
{{- fail "pipelines need security.pipelineTokenSecret once security.authSecret is set: without a token the server refuses every one of their pods" -}}
{{- end -}}
{{- end -}}

{{- define "tributary.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tributary.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The scheme of a probe, where it is not http. */}}
{{- define "tributary.probe" -}}
{{- if .Values.security.tlsSecret -}}, scheme: HTTPS{{- end -}}
{{- end -}}

{{/* Where the secrets of a pod are mounted, as YAML; `pipeline`: of one that only calls. */}}
{{- define "tributary.secretMounts" -}}
{{- $mounts := list -}}
{{- if .security.tlsSecret -}}
{{- $mounts = append $mounts (dict "name" "tls" "mountPath" "/etc/tributary/tls" "readOnly" true) -}}
{{- end -}}
{{- if and .pipeline .security.pipelineTokenSecret -}}
{{- $mounts = append $mounts (dict "name" "token" "mountPath" "/etc/tributary/token" "readOnly" true) -}}
{{- end -}}
{{- if not .pipeline -}}
{{- if .security.authSecret -}}
{{- $mounts = append $mounts (dict "name" "auth" "mountPath" "/etc/tributary/auth" "readOnly" true) -}}
{{- end -}}
{{- if .security.clusterKeySecret -}}
{{- $mounts = append $mounts (dict "name" "cluster" "mountPath" "/etc/tributary/cluster" "readOnly" true) -}}
{{- end -}}
{{- end -}}
{{- toYaml $mounts -}}
{{- end -}}

{{/* The volumes of those. A pod that only calls gets no key of the server. */}}
{{- define "tributary.secretVolumes" -}}
{{- $volumes := list -}}
{{- if .security.tlsSecret -}}
{{- $secret := dict "secretName" .security.tlsSecret -}}
{{- if .pipeline -}}
{{- $secret = dict "secretName" .security.tlsSecret "items" (list (dict "key" "ca.crt" "path" "ca.crt")) -}}
{{- end -}}
{{- $volumes = append $volumes (dict "name" "tls" "secret" $secret) -}}
{{- end -}}
{{- if and .pipeline .security.pipelineTokenSecret -}}
{{- $volumes = append $volumes (dict "name" "token" "secret" (dict "secretName" .security.pipelineTokenSecret)) -}}
{{- end -}}
{{- if not .pipeline -}}
{{- if .security.authSecret -}}
{{- $volumes = append $volumes (dict "name" "auth" "secret" (dict "secretName" .security.authSecret)) -}}
{{- end -}}
{{- if .security.clusterKeySecret -}}
{{- $volumes = append $volumes (dict "name" "cluster" "secret" (dict "secretName" .security.clusterKeySecret)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $volumes -}}
{{- end -}}

{{/* The pod of a component: `root` and `c`, one of the components. */}}
{{- define "tributary.pod" -}}
{{- $root := .root -}}
{{- $c := .c -}}
metadata:
  labels:
    {{- include "tributary.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $c.name }}
    tributary.io/metrics: "true"
spec:
  serviceAccountName: {{ include "tributary.serviceAccount" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "tributary.podSecurity" $root | nindent 4 }}
  # Draining, 5 s for cancelled batches to roll back, and closing the ports.
  terminationGracePeriodSeconds: {{ add $root.Values.server.drainSeconds 20 }}
  containers:
    - name: tributary
      image: {{ include "tributary.image" $root | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args:
        - serve
        {{- if $root.Values.server.logJson }}
        - --log-json
        {{- end }}
        - --store-timeout={{ $root.Values.server.storeTimeout }}
        {{- if ne $c.name "server" }}
        - --roles={{ $c.name }}
        {{- end }}
        {{- range $c.calls }}
        - --{{ . }}-address={{ include "tributary.scheme" $root }}://{{ include "tributary.service" (dict "root" $root "component" .) }}:7373
        {{- end }}
        - --listen=0.0.0.0:7373
        {{- with $root.Values.security }}
        {{- if .tlsSecret }}
        - --tls-cert=/etc/tributary/tls/tls.crt
        - --tls-key=/etc/tributary/tls/tls.key
        - --tls-ca=/etc/tributary/tls/ca.crt
        {{- end }}
        {{- if .clientCertificates }}
        - --tls-client-ca=/etc/tributary/tls/ca.crt
        {{- end }}
        {{- if .authSecret }}
        - --auth-file=/etc/tributary/auth/auth.toml
        {{- end }}
        {{- if .clusterKeySecret }}
        - --cluster-key-file=/etc/tributary/cluster/cluster.key
        {{- end }}
        {{- range .allowUrlPrefixes }}
        - --allow-url-prefix={{ . }}
        {{- end }}
        {{- end }}
        {{- if not (include "tributary.asks" $root) }}
        # Nothing is encrypted and nobody is asked who they are: the network policies are what protects this port.
        - --insecure
        {{- end }}
        - --http-listen=0.0.0.0:7374
        - --drain={{ $root.Values.server.drainSeconds }}s
        {{- if or (eq $c.name "server") (eq $c.name "coordinator") }}
        - --max-batches={{ $root.Values.server.maxBatches }}
        - --memory={{ $root.Values.server.memory }}
        {{- end }}
        {{- if $c.data }}
        - --data-dir=/var/lib/tributary
        {{- end }}
      env:
        - name: TRIBUTARY_LOG
          value: {{ $root.Values.server.log | quote }}
        {{- if $c.spill }}
        - name: TMPDIR
          value: /spill
        {{- end }}
        {{- with $root.Values.server.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $root.Values.server.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: grpc
          containerPort: 7373
        - name: http
          containerPort: 7374
      # None of them looks at a store or at another process but readiness, which tells what roles elsewhere said last.
      startupProbe:
        httpGet: {path: /livez, port: http{{ include "tributary.probe" $root }}}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /livez, port: http{{ include "tributary.probe" $root }}}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: http{{ include "tributary.probe" $root }}}
        periodSeconds: 5
        timeoutSeconds: 3
      resources:
        {{- toYaml $c.settings.resources | nindent 8 }}
      securityContext:
        {{- include "tributary.containerSecurity" $root | nindent 8 }}
      {{- $secrets := include "tributary.secretMounts" (dict "security" $root.Values.security "pipeline" false) | fromYamlArray }}
      {{- if or $c.spill $c.data $root.Values.volumeMounts $secrets }}
      volumeMounts:
        {{- if $c.spill }}
        - name: spill
          mountPath: /spill
        {{- end }}
        {{- if $c.data }}
        - name: data
          mountPath: /var/lib/tributary
        {{- end }}
        {{- with $secrets }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- with $root.Values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
  {{- if or $c.spill $root.Values.volumes $secrets }}
  volumes:
    {{- if $c.spill }}
    - name: spill
      emptyDir:
        sizeLimit: {{ $root.Values.spill.sizeLimit }}
    {{- end }}
    {{- with include "tributary.secretVolumes" (dict "security" $root.Values.security "pipeline" false) | fromYamlArray }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $root.Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  {{- if not $c.stateful }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "tributary.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ $c.name }}
  {{- end }}
  {{- with $c.settings.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $c.settings.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $c.settings.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
