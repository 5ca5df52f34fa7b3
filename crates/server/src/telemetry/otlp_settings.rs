// SPDX-License-Identifier: Apache-2.0
//! Where traces go, and which: the flag, and the variables that OpenTelemetry names.

use std::sync::Arc;
use std::time::Duration;

use tonic::transport::Channel;
use tributary_rpc::otlp::{Collector, Header, header};
use tributary_rpc::{Dial, connect_with};
use tributary_security::{ClientFiles, ClientTls};
use tributary_trace::Sampling;
use tributary_types::with_causes;

/// Spans that wait to be sent.
const QUEUE: usize = 8192;
const DELAY: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where traces go.
pub(super) struct OtlpSettings {
    channel: Channel,
    headers: Vec<Header>,
    /// What is known of this process.
    resource: Vec<(String, String)>,
    timeout: Duration,
    /// Spans that may wait.
    pub(super) queue: usize,
    /// How long spans are gathered before they are sent.
    pub(super) delay: Duration,
    /// Which traces are kept.
    pub(super) sampling: Sampling,
}

/// A variable of the environment by its name; an empty one is none.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl OtlpSettings {
    /// Reads where traces go; `None`: nowhere. `own` is what this process knows of itself. Must be called in a runtime.
    ///
    /// # Errors
    /// Says which setting is wrong and what it should be.
    pub(super) fn read(
        flag: Option<&str>,
        environment: Environment<'_>,
        own: &[(&str, String)],
    ) -> Result<Option<Self>, String> {
        let get = |name: &str| environment(name).filter(|value| !value.is_empty());
        let off = get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || (flag.is_none() && get("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none"));
        // That of traces before that of everything.
        let (name, endpoint) = match flag {
            Some(flag) => ("--otlp-endpoint", Some(flag.to_string())),
            None => first(&get, ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]),
        };
        let Some(endpoint) = endpoint.filter(|_| !off) else { return Ok(None) };
        let protocol = first(&get, ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]);
        if let (named, Some(protocol)) = protocol
            && flag.is_none()
            && protocol != "grpc"
        {
            return Err(format!("{named}={protocol}: traces are sent by gRPC only; point to a port that takes `grpc`"));
        }
        let dial = Dial { tls: authorities(&get)?, ..Dial::default() };
        let channel =
            connect_with(&endpoint, &dial).map_err(|e| format!("{name}: {}", with_causes(&e)))?.into_transport();
        let mut settings = OtlpSettings {
            channel,
            headers: Vec::new(),
            resource: own.iter().map(|(name, value)| ((*name).to_string(), value.clone())).collect(),
            timeout: TIMEOUT,
            queue: QUEUE,
            delay: DELAY,
            sampling: Sampling::All,
        };
        for name in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"] {
            for (key, value) in pairs(name, &get)? {
                // The value may be a secret: it is not repeated.
                let read = header(&key, &value).ok_or_else(|| format!("{name}: `{key}` is no header with a value"))?;
                settings.headers.retain(|(known, _)| known != read.0);
                settings.headers.push(read);
            }
        }
        for (key, value) in pairs("OTEL_RESOURCE_ATTRIBUTES", &get)? {
            settings.describe(key, value);
        }
        if let Some(service) = get("OTEL_SERVICE_NAME") {
            settings.describe("service.name".to_string(), service);
        }
        let timeouts = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
        if let (name, Some(millis)) = first(&get, timeouts) {
            settings.timeout = Duration::from_millis(number(name, &millis)?);
        }
        if let Some(millis) = get("OTEL_BSP_SCHEDULE_DELAY") {
            settings.delay = Duration::from_millis(number("OTEL_BSP_SCHEDULE_DELAY", &millis)?);
        }
        if let Some(queue) = get("OTEL_BSP_MAX_QUEUE_SIZE") {
            settings.queue = number("OTEL_BSP_MAX_QUEUE_SIZE", &queue)? as usize;
        }
        settings.sampling = sampling(&get)?;
        Ok(Some(settings))
    }

    fn describe(&mut self, name: String, value: String) {
        self.resource.retain(|(known, _)| *known != name);
        self.resource.push((name, value));
    }

    pub(super) fn into_collector(self) -> Collector {
        Collector::new(self.channel, self.headers, &self.resource, self.timeout)
    }
}

/// What a collector's certificate is checked with; `None`: the authorities of the system.
fn authorities(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Arc<ClientTls>>, String> {
    let variables = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
    let (name, Some(file)) = first(get, variables) else { return Ok(None) };
    let files = ClientFiles { ca: Some(file.into()), identity: None };
    ClientTls::open(files).map(|tls| Some(Arc::new(tls))).map_err(|e| format!("{name}: {}", with_causes(&e)))
}

/// The first variable that is set, and its name; without one the last name.
fn first<'n, const N: usize>(get: &dyn Fn(&str) -> Option<String>, names: [&'n str; N]) -> (&'n str, Option<String>) {
    let found = names.iter().find_map(|name| Some((*name, Some(get(name)?))));
    found.unwrap_or((names[N - 1], None))
}

fn number(name: &str, text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("{name}={text}: it must be a whole number above 0")),
        Ok(number) => Ok(number),
    }
}

/// `name=value` pairs with commas between, percent-encoded.
fn pairs(name: &str, get: &dyn Fn(&str) -> Option<String>) -> Result<Vec<(String, String)>, String> {
    let text = get(name).unwrap_or_default();
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{name}: a part has no `=`"))?;
            let value = tributary_trace::percent_decode(value.trim())
                .ok_or_else(|| format!("{name}: the value of `{}` is no percent-encoded text", key.trim()))?;
            Ok((key.trim().to_string(), value))
        })
        .collect()
}

fn sampling(get: &dyn Fn(&str) -> Option<String>) -> Result<Sampling, String> {
    let Some(sampler) = get("OTEL_TRACES_SAMPLER") else { return Ok(Sampling::All) };
    // A trace that began elsewhere is kept where it is kept there, whatever is chosen here.
    match sampler.trim_start_matches("parentbased_") {
        "always_on" => Ok(Sampling::All),
        "always_off" => Ok(Sampling::Nothing),
        "traceidratio" => {
            let text = get("OTEL_TRACES_SAMPLER_ARG").unwrap_or_else(|| "1".to_string());
            let part = text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
            part.map(Sampling::Ratio)
                .ok_or_else(|| format!("OTEL_TRACES_SAMPLER_ARG={text}: it must be a number from 0 to 1"))
        }
        _ => Err(format!(
            "OTEL_TRACES_SAMPLER={sampler}: it must be `always_on`, `always_off` or `traceidratio`, or one of them after \
             `parentbased_`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn read(flag: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<OtlpSettings>, String> {
        let variables: HashMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
        let own = [("service.name", "tributary".to_string()), ("tributary.roles", "merge".to_string())];
        OtlpSettings::read(flag, &|name| variables.get(name).cloned(), &own)
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");

    #[tokio::test]
    async fn traces_go_nowhere_unless_an_endpoint_says_where() {
        assert!(read(None, &[]).unwrap().is_none());
        assert!(read(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).unwrap().is_none());
        assert!(read(Some("http://c:4317"), &[]).unwrap().is_some());
        assert!(read(None, &[ENDPOINT]).unwrap().is_some());
        assert!(read(None, &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:4317")]).unwrap().is_some());
        assert!(read(None, &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]).unwrap().is_none());
        assert!(read(Some("http://c:4317"), &[("OTEL_SDK_DISABLED", "true")]).unwrap().is_none());
    }

    #[tokio::test]
    async fn the_variables_of_opentelemetry_are_read() {
        let settings = read(
            None,
            &[
                ENDPOINT,
                ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20a%2Cb, x-team = data"),
                ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=other"),
                ("OTEL_SERVICE_NAME", "orders"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
                ("OTEL_BSP_SCHEDULE_DELAY", "200"),
                ("OTEL_BSP_MAX_QUEUE_SIZE", "64"),
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ],
        );
        let settings = settings.unwrap().unwrap();
        let headers: Vec<(&str, &str)> =
            settings.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(headers, [("authorization", "Bearer a,b"), ("x-team", "data")]);
        let resource: HashMap<&str, &str> =
            settings.resource.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(resource.len(), 3);
        assert_eq!((resource["service.name"], resource["tributary.roles"]), ("orders", "merge"));
        assert_eq!(resource["deployment.environment.name"], "test");
        let millis = Duration::from_millis;
        assert_eq!((settings.timeout, settings.delay, settings.queue), (millis(2500), millis(200), 64));
        assert_eq!(settings.sampling, Sampling::Ratio(0.25));
    }

    #[tokio::test]
    async fn a_wrong_setting_is_named_with_what_it_should_be_and_no_secret_is_repeated() {
        for (variable, value, wanted) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "grpc"),
            ("OTEL_TRACES_SAMPLER", "sometimes", "always_on"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "whole number"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem", "/nowhere/ca.pem"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "above 0"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret-one", "no `=`"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "bad name=secret-one", "bad name"),
        ] {
            let refused = read(None, &[ENDPOINT, (variable, value)]).err().unwrap();
            assert!(refused.contains(variable) && refused.contains(wanted), "{refused}");
            assert!(!refused.contains("secret-one"), "{refused}");
        }
        let refused = read(Some("collector:4317"), &[]).err().unwrap();
        assert!(refused.contains("--otlp-endpoint") && refused.contains("http://HOST:PORT"), "{refused}");
    }
}
