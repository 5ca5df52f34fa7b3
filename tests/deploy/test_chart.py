# SPDX-License-Identifier: Apache-2.0
"""The chart and the manifests made of it."""

import copy
import re
import tomllib
import unittest

import crds
import kubernetes_validate
from chart import CHART, NEWEST, OLDEST, ROOT, helm, of_kind, pod_of, read_yaml, render, template, value_files
from render import MANIFESTS, RENDERED, manifest

WORKLOADS = ("StatefulSet", "Deployment")


def check_object(document):
    """Raises what is wrong with one object."""
    if document["kind"] in crds.MODELS:
        crds.check(document)
        return
    for version in (OLDEST, NEWEST):
        kubernetes_validate.validate(document, version, strict=True)


def server_pods(documents):
    """Pods that serve; those of pipelines only call."""
    found = []
    for workload in of_kind(documents, *WORKLOADS):
        if workload["metadata"]["labels"]["app.kubernetes.io/component"] != "pipeline":
            found.append((workload, pod_of(workload)))
    return found


def flags(pod):
    """The flags of a server's container, by name."""
    found = {}
    for argument in pod["containers"][0]["args"][1:]:
        name, _, value = argument.removeprefix("--").partition("=")
        found[name] = value
    return found


class Chart(unittest.TestCase):
    def rendered(self):
        for values in value_files():
            yield values.name, render(values)

    def test_helm_finds_nothing_to_complain_about_for_any_values(self):
        for values in value_files():
            done = helm("lint", "--strict", CHART, "-f", values)
            self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def test_every_object_is_one_that_kubernetes_knows_field_by_field(self):
        for name, documents in self.rendered():
            self.assertGreaterEqual(len(documents), 4, name)
            for document in documents:
                with self.subTest(values=name, kind=document["kind"], name=document["metadata"]["name"]):
                    check_object(document)

    def test_a_misspelt_field_is_found_in_objects_of_every_sort(self):
        documents = render(*[values for values in value_files() if values.name == "everything.yaml"])
        for kind, path, key in (("StatefulSet", ("spec", "template", "spec"), "terminationGracePeriod"),
                                ("NetworkPolicy", ("spec",), "egres"), ("PrometheusRule", ("spec",), "group"),
                                ("ServiceMonitor", ("spec",), "endpoint")):
            broken = copy.deepcopy(of_kind(documents, kind)[0])
            place = broken
            for step in path:
                place = place[step]
            place[key] = []
            with self.assertRaises(Exception, msg=f"{kind} with {key}"):
                check_object(broken)

    def test_no_two_objects_have_one_name_and_selectors_find_their_pods(self):
        for name, documents in self.rendered():
            names = [(document["kind"], document["metadata"]["name"]) for document in documents]
            self.assertEqual(len(names), len(set(names)), f"{name}: {names}")
            pods = [workload["spec"]["template"]["metadata"]["labels"] for workload in of_kind(documents, *WORKLOADS)]
            for document in of_kind(documents, "Service", "PodDisruptionBudget", "NetworkPolicy"):
                spec = document["spec"]
                selector = spec.get("podSelector", spec.get("selector", {}))
                selector = selector.get("matchLabels", selector)
                chosen = [labels for labels in pods if selector.items() <= labels.items()]
                self.assertTrue(chosen, f"{name}: {document['kind']} {document['metadata']['name']} finds no pod")

    def test_every_pod_runs_restricted_with_nothing_writable_but_its_volumes(self):
        for name, documents in self.rendered():
            workloads = of_kind(documents, *WORKLOADS)
            self.assertTrue(workloads)
            for workload in workloads:
                pod = pod_of(workload)
                self.assertIs(False, pod["automountServiceAccountToken"], name)
                security = pod["securityContext"]
                self.assertTrue(security["runAsNonRoot"] and security["runAsUser"] > 0, name)
                self.assertEqual({"type": "RuntimeDefault"}, security["seccompProfile"])
                for container in pod["containers"]:
                    security = container["securityContext"]
                    self.assertIs(False, security["allowPrivilegeEscalation"])
                    self.assertIs(True, security["readOnlyRootFilesystem"])
                    self.assertEqual({"drop": ["ALL"]}, security["capabilities"])
                    self.assertIn("memory", container["resources"]["limits"])
                if workload["metadata"]["labels"]["app.kubernetes.io/component"] != "pipeline":
                    resources = pod["containers"][0]["resources"]
                    self.assertEqual(resources["limits"]["memory"], resources["requests"]["memory"], name)

    def test_servers_are_probed_and_have_more_time_to_stop_than_they_drain(self):
        for name, documents in self.rendered():
            for workload, pod in server_pods(documents):
                container = pod["containers"][0]
                paths = {probe: container[probe]["httpGet"]["path"]
                         for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
                self.assertEqual({"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}, paths)
                drain = int(flags(pod)["drain"].removesuffix("s"))
                # Cancelled batches have 5 s to roll back, open connections 2 s on each port.
                self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], drain + 15, workload["metadata"]["name"])

    def test_state_is_kept_by_single_replicas_only(self):
        for name, documents in self.rendered():
            for workload, pod in server_pods(documents):
                stateful = workload["kind"] == "StatefulSet"
                component = workload["metadata"]["labels"]["app.kubernetes.io/component"]
                self.assertEqual(component in ("server", "coordinator", "checkpoint"), stateful, component)
                if stateful:
                    self.assertEqual(1, workload["spec"]["replicas"])
                keeps = "data-dir" in flags(pod)
                self.assertEqual(component in ("server", "coordinator", "checkpoint"), keeps)
                self.assertEqual(keeps, "volumeClaimTemplates" in workload["spec"])
            deployments = {workload["metadata"]["name"] for workload in of_kind(documents, "Deployment")}
            for scaler in of_kind(documents, "HorizontalPodAutoscaler"):
                self.assertEqual("Deployment", scaler["spec"]["scaleTargetRef"]["kind"])
                self.assertIn(scaler["spec"]["scaleTargetRef"]["name"], deployments)
        scaled = render(next(values for values in value_files() if values.name == "roles-scaled.yaml"))
        self.assertEqual(2, len(of_kind(scaled, "HorizontalPodAutoscaler")))

    def test_nothing_is_reachable_from_outside_and_policies_name_who_calls(self):
        for name, documents in self.rendered():
            self.assertEqual([], of_kind(documents, "Ingress"), name)
            self.assertEqual({"ClusterIP"}, {service["spec"]["type"] for service in of_kind(documents, "Service")})
            if name == "bare.yaml":
                self.assertEqual([], of_kind(documents, "NetworkPolicy"))
                continue
            policies = {policy["metadata"]["labels"]["app.kubernetes.io/component"]: policy["spec"]
                        for policy in of_kind(documents, "NetworkPolicy")}
            workloads = {workload["metadata"]["labels"]["app.kubernetes.io/component"]
                         for workload in of_kind(documents, *WORKLOADS)}
            self.assertEqual(workloads, set(policies), "a policy for every kind of pod")
            for component, spec in policies.items():
                self.assertEqual(["Ingress", "Egress"], spec["policyTypes"])
                for rule in spec.get("ingress", []):
                    self.assertTrue(rule["from"] and rule["ports"], f"{name}, {component}: anybody may call")

    def test_a_role_may_call_whom_its_flags_name_and_nobody_else(self):
        documents = render(next(values for values in value_files() if values.name == "roles.yaml"))
        policies = {policy["metadata"]["labels"]["app.kubernetes.io/component"]: policy["spec"]
                    for policy in of_kind(documents, "NetworkPolicy")}
        services = {service["metadata"]["name"]: service["spec"] for service in of_kind(documents, "Service")}
        component = lambda peer: peer["podSelector"]["matchLabels"].get("app.kubernetes.io/component")
        calls = {}
        for workload, pod in server_pods(documents):
            caller = workload["metadata"]["labels"]["app.kubernetes.io/component"]
            addresses = {name.removesuffix("-address"): value for name, value in flags(pod).items()
                         if name.endswith("-address")}
            for role, address in addresses.items():
                host, port = re.fullmatch(r"http://([a-z-]+):([0-9]+)", address).groups()
                self.assertEqual(role, services[host]["selector"]["app.kubernetes.io/component"])
                self.assertEqual([int(port)], [given["port"] for given in services[host]["ports"]])
            calls[caller] = set(addresses)
            allowed = {component(peer) for rule in policies[caller]["egress"] for peer in rule.get("to", [])}
            self.assertEqual(calls[caller], allowed, caller)
        self.assertEqual({"timeline", "sources", "checkpoint", "merge"}, calls["coordinator"])
        self.assertEqual({"timeline", "sources", "writer"}, calls["merge"])
        for role, spec in policies.items():
            allowed = {component(peer) for rule in spec["ingress"] for peer in rule["from"] if "podSelector" in peer}
            callers = {caller for caller, called in calls.items() if role in called}
            self.assertEqual(callers | ({"pipeline", None} if role == "coordinator" else set()), allowed, role)

    def test_a_pipeline_of_the_values_reaches_its_pod_byte_for_byte(self):
        values = next(values for values in value_files() if values.name == "everything.yaml")
        given = read_yaml(values.read_text())[0]["pipelines"]
        documents = render(values)
        maps = {document["metadata"]["name"]: document["data"] for document in of_kind(documents, "ConfigMap")}
        pods = [pod_of(workload) for workload in of_kind(documents, "Deployment")]
        self.assertEqual(len(given), len(pods))
        for pod in pods:
            files = maps[pod["volumes"][0]["configMap"]["name"]]
            self.assertIn(files, [pipeline["files"] for pipeline in given.values()])
            self.assertIn("--server=http://tributary:7373", pod["containers"][0]["args"])

    def test_a_secured_chart_is_encrypted_everywhere_and_gives_each_pod_only_its_own_secrets(self):
        documents = render(next(values for values in value_files() if values.name == "secured.yaml"))
        for workload, pod in server_pods(documents):
            name, given = workload["metadata"]["name"], flags(pod)
            self.assertNotIn("insecure", given, name)
            self.assertFalse([value for value in given.values() if value.startswith("http://")], name)
            mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
            for flag in ("tls-cert", "tls-key", "tls-ca", "tls-client-ca", "auth-file", "cluster-key-file"):
                self.assertTrue([at for at in mounts.values() if given[flag].startswith(at + "/")], f"{name}: {flag}")
            self.assertEqual(set(mounts), {volume["name"] for volume in pod["volumes"]} | ({"data"} & set(mounts)), name)
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                self.assertEqual("HTTPS", pod["containers"][0][probe]["httpGet"]["scheme"], name)
        pipelines = [pod_of(workload) for workload in of_kind(documents, "Deployment")
                     if workload["metadata"]["labels"]["app.kubernetes.io/component"] == "pipeline"]
        self.assertEqual(1, len(pipelines))
        self.assertIn("--server=https://tributary:7373", pipelines[0]["containers"][0]["args"])
        secrets = {volume["name"]: volume["secret"] for volume in pipelines[0]["volumes"] if "secret" in volume}
        self.assertEqual({"tls", "token"}, set(secrets))
        self.assertEqual(["ca.crt"], [item["key"] for item in secrets["tls"]["items"]], "no key of the server")
        monitor = of_kind(documents, "ServiceMonitor")[0]["spec"]["endpoints"][0]
        self.assertEqual(("https", "tributary-tls"), (monitor["scheme"], monitor["tlsConfig"]["ca"]["secret"]["name"]))
        for wrong, said in (("security.authSecret=a", "tlsSecret"), ("security.clusterKeySecret=a", "of no use"),
                            ("mode=roles,security.tlsSecret=a,security.authSecret=b", "clusterKeySecret")):
            done = helm("template", "x", CHART, "--set", wrong)
            self.assertNotEqual(0, done.returncode, wrong)
            self.assertIn(said, done.stderr, wrong)

    def test_pipelines_that_the_server_would_refuse_are_not_rendered(self):
        pipeline = "pipelines.a.files.pipeline\\.toml=x,security.tlsSecret=t"
        for security, said in (("security.clientCertificates=true", "security.authSecret"),
                               ("security.clientCertificates=true,security.pipelineTokenSecret=p", "security.authSecret"),
                               ("security.authSecret=a", "security.pipelineTokenSecret"),
                               ("security.authSecret=a,security.clientCertificates=true", "security.pipelineTokenSecret")):
            done = helm("template", "x", CHART, "--set", f"{pipeline},{security}")
            self.assertNotEqual(0, done.returncode, f"{security} was taken")
            self.assertIn("pipelines", done.stderr, security)
            self.assertIn(said, done.stderr, security)
            # The server alone is fine with it.
            alone = helm("template", "x", CHART, "--set", f"security.tlsSecret=t,{security}")
            self.assertEqual(0, alone.returncode, alone.stderr)
        both = "security.authSecret=a,security.pipelineTokenSecret=p"
        for security in (both, f"{both},security.clientCertificates=true"):
            done = helm("template", "x", CHART, "--set", f"{pipeline},{security}")
            self.assertEqual(0, done.returncode, done.stderr)

    def test_wrong_values_are_refused_with_their_place(self):
        for wrong, said in (("mode=both", "mode"), ("server.memry=1GiB", "memry"), ("server.memory=4Gi", "memory"),
                            ("server.memory=6GiB", "must be larger than server.memory"),
                            ("roles.coordinator.replicas=2", "replicas"), ("roles.checkpoint.replicas=2", "replicas"),
                            ("roles.coordinator.autoscaling.enabled=true", "autoscaling"),
                            ("server.drainSeconds=ten", "drainSeconds"), ("image.digest=latest", "digest"),
                            ("pipelines.a.files.merge\\.sql=x", "pipeline.toml")):
            done = helm("template", "x", CHART, "--set", wrong)
            self.assertNotEqual(0, done.returncode, f"{wrong} was taken")
            self.assertIn(said, done.stderr, wrong)
        done = helm("template", "x", CHART, "--set", "mode=roles,server.memory=6GiB")
        self.assertIn("roles.merge.resources.limits.memory", done.stderr)

    def test_the_rendered_manifests_are_up_to_date(self):
        for name in RENDERED:
            text = (MANIFESTS / name).read_text(encoding="utf-8")
            self.assertEqual(manifest(name), text, f"deploy/manifests/{name}: run `make manifests`")
            for document in read_yaml(text):
                check_object(document)
        self.assertEqual(set(RENDERED), {path.name for path in MANIFESTS.iterdir()})

    def test_versions_are_those_of_the_workspace(self):
        version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
        chart = read_yaml((CHART / "Chart.yaml").read_text())[0]
        self.assertEqual((version, version), (chart["version"], chart["appVersion"]))
        self.assertIn(f"image: \"tributary:{version}\"", template())
