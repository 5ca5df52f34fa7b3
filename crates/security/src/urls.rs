// SPDX-License-Identifier: Apache-2.0
//! Where tables may lie.
//!
//! A location is brought into one form before it is compared: the scheme and host in small letters, each segment of the
//! path decoded, symbolic links of the local disk followed. What has more than one reading (`..`, encoded slashes,
//! backslashes, queries, control characters) is refused instead of resolved.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use url::Url;

/// A location that was refused. User and password are never repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{url}` is refused: {why}")]
pub struct UrlRefused {
    /// The location, without what may be secret.
    pub url: String,
    /// Why.
    pub why: String,
}

/// Schemes that are other names of one store.
const ALIASES: [(&str, &str); 1] = [("s3a", "s3")];

/// A location in its one form.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// `s3://bucket`; `file://` for the local disk.
    store: String,
    segments: Vec<String>,
}

impl Place {
    fn is_within(&self, prefix: &Place) -> bool {
        self.store == prefix.store && self.segments.starts_with(&prefix.segments)
    }
}

/// The prefixes that locations must have one of. Without any, every location is allowed.
#[derive(Debug, Clone, Default)]
pub struct Prefixes {
    allowed: Vec<Place>,
    shown: Vec<String>,
}

impl Prefixes {
    /// Prefixes as they are written: paths, or URLs. A prefix is a folder: `/lake` has `/lake/orders`, not `/lake2`.
    pub fn new(prefixes: &[String]) -> Result<Self, UrlRefused> {
        let allowed = prefixes.iter().map(|prefix| place_of(prefix)).collect::<Result<_, _>>()?;
        Ok(Prefixes { allowed, shown: prefixes.to_vec() })
    }

    /// Whether every location is allowed.
    pub fn is_empty(&self) -> bool {
        self.allowed.is_empty()
    }

    /// Refuses a location outside of every prefix, or one that has more than one reading.
    pub fn check(&self, url: &str) -> Result<(), UrlRefused> {
        if self.is_empty() {
            return Ok(());
        }
        let place = place_of(url)?;
        if self.allowed.iter().any(|prefix| place.is_within(prefix)) {
            return Ok(());
        }
        let why =
            format!("it is outside of what this server works with (`--allow-url-prefix`): {}", self.shown.join(", "));
        Err(UrlRefused { url: without_credentials(url), why })
    }
}

/// The URL without user and password.
fn without_credentials(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_string() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://***@{host}{path}"),
        None => url.to_string(),
    }
}

fn place_of(url: &str) -> Result<Place, UrlRefused> {
    let refuse = |why: &str| UrlRefused { url: without_credentials(url), why: why.to_string() };
    if url.trim().is_empty() {
        return Err(refuse("it is empty"));
    }
    if url.chars().any(char::is_control) || url.contains('\\') {
        return Err(refuse("it holds a backslash or a control character"));
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        // Percent signs of a path are part of names.
        return local(Path::new(url)).map_err(|why| refuse(&why));
    };
    let scheme = scheme.to_ascii_lowercase();
    if rest.contains(['?', '#']) {
        return Err(refuse("it holds `?` or `#`, which a location has not"));
    }
    let path = rest.find('/').map_or("", |at| &rest[at..]);
    let segments = path.split('/').filter(|segment| !segment.is_empty());
    let segments: Vec<String> = segments.map(decode).collect::<Result<_, _>>().map_err(&refuse)?;
    if scheme == "file" {
        if !rest.starts_with('/') {
            return Err(refuse("a file:// URL has three slashes: file:///lake"));
        }
        return local(Path::new(&format!("/{}", segments.join("/")))).map_err(|why| refuse(&why));
    }
    if scheme == "kafka" {
        let brokers = &rest[..rest.len() - path.len()];
        if brokers.contains('@') {
            return Err(refuse("it holds credentials"));
        }
        return Ok(Place { store: format!("kafka://{}", brokers.to_ascii_lowercase()), segments });
    }
    let parsed = Url::parse(url).map_err(|e| refuse(&e.to_string()))?;
    let host = parsed.host_str().unwrap_or_default().to_ascii_lowercase();
    // `abfs://container@account…` names a container before the `@`; elsewhere that is a user.
    let container = match scheme.as_str() {
        "abfs" | "abfss" if parsed.password().is_none() => parsed.username(),
        _ if parsed.password().is_some() || !parsed.username().is_empty() => {
            return Err(refuse("credentials do not belong into a URL: set them in the server's environment"));
        }
        _ => "",
    };
    let scheme = ALIASES.iter().find(|(alias, _)| *alias == scheme).map_or(scheme.as_str(), |(_, same)| same);
    let port = parsed.port().map(|port| format!(":{port}")).unwrap_or_default();
    Ok(Place { store: format!("{scheme}://{container}@{host}{port}"), segments })
}

/// A segment of a URL's path as the name that it stands for.
fn decode(segment: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or("it holds a percent sign that encodes nothing")?);
        rest = &after[2..];
    }
    let name = String::from_utf8(bytes).map_err(|_| "it is no UTF-8 once decoded")?;
    match name.as_str() {
        "." | ".." => Err("`.` and `..` are no parts of a location"),
        name if name.chars().any(|c| c.is_control() || matches!(c, '/' | '\\')) => {
            Err("it encodes a slash, a backslash or a control character")
        }
        // Once more decoded it would be another name.
        name if name.to_ascii_lowercase().contains("%2e") || name.to_ascii_lowercase().contains("%2f") => {
            Err("it is encoded twice")
        }
        _ => Ok(name),
    }
}

/// A path of the local disk with its links followed, as far as it exists.
fn local(path: &Path) -> Result<Place, String> {
    let absolute = std::path::absolute(path).map_err(|e| e.to_string())?;
    if path.components().chain(absolute.components()).any(|part| part == Component::ParentDir) {
        return Err("`..` is no part of a location".to_string());
    }
    let resolved = follow_links(&absolute).map_err(|e| format!("its links cannot be followed: {e}"))?;
    let segments = resolved.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_str().map(ToString::to_string).ok_or("it is no UTF-8")),
        _ => None,
    });
    Ok(Place { store: "file://".to_string(), segments: segments.collect::<Result<_, _>>()? })
}

/// The longest part of `path` that exists, with its links followed, and the rest as it is.
fn follow_links(path: &Path) -> std::io::Result<PathBuf> {
    let mut rest: Vec<OsString> = Vec::new();
    let mut existing = path.to_path_buf();
    loop {
        match std::fs::canonicalize(&existing) {
            Ok(mut resolved) => {
                resolved.extend(rest.iter().rev());
                return Ok(resolved);
            }
            // A link that leads nowhere is there, and may lead somewhere tomorrow.
            Err(error) if std::fs::symlink_metadata(&existing).is_ok() => return Err(error),
            Err(error) => match (existing.file_name().map(ToOwned::to_owned), existing.pop()) {
                (Some(name), true) => rest.push(name),
                _ => return Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(given: &[&str]) -> Prefixes {
        Prefixes::new(&given.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn without_prefixes_every_location_is_allowed() {
        assert!(Prefixes::default().check("/anywhere").is_ok());
    }

    #[test]
    fn a_location_is_within_a_prefix_by_whole_folders() {
        let allowed =
            prefixes(&["s3://lake/tables", "gs://other", "hdfs://name:9000/lake", "kafka://b1:9092,b2:9092/orders"]);
        for good in [
            "s3://lake/tables",
            "s3://lake/tables/orders/",
            "s3a://lake/tables/orders",
            "S3://LAKE/tables/a%20b",
            "s3://lake//tables/orders",
            "gs://other/x",
            "hdfs://name:9000/lake/t",
            "kafka://B1:9092,b2:9092/orders",
        ] {
            assert_eq!(allowed.check(good), Ok(()), "{good}");
        }
        for bad in [
            "s3://lake/tables2",
            "s3://lake/Tables/orders",
            "s3://lake",
            "s3://lake.evil/tables/orders",
            "gs://lake/tables/orders",
            "hdfs://name:9001/lake/t",
            "hdfs://name/lake/t",
            "kafka://b1:9092/orders",
            "kafka://b1:9092,b2:9092/orders2",
            "/lake/tables",
            "",
        ] {
            assert!(allowed.check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_has_more_than_one_reading_is_refused() {
        let allowed = prefixes(&["s3://lake/tables", "/"]);
        for bad in [
            "s3://lake/tables/../secret",
            "s3://lake/tables/%2e%2e/secret",
            "s3://lake/tables/%2E./secret",
            "s3://lake/tables/./x",
            "s3://lake/tables%2f..%2fsecret",
            "s3://lake/tables/a%2fb",
            "s3://lake/tables/a%5cb",
            "s3://lake/tables/a%00b",
            "s3://lake/tables/a\u{0}b",
            "s3://lake/tables/a\\b",
            "s3://lake/tables/%252e%252e/secret",
            "s3://lake/tables/%zz",
            "s3://lake/tables/%2",
            "s3://lake/tables/%ff",
            "s3://lake/tables/x?versionId=1",
            "s3://lake/tables/x#part",
            "file://host/lake",
            "file:///lake/../etc",
            "/lake/../etc",
            "../etc",
        ] {
            assert!(allowed.check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        let allowed = prefixes(&["s3://lake"]);
        for bad in
            ["s3://key:secretpw@lake/t", "s3://secretpw@lake/t", "kafka://me:secretpw@b/t", "s3://x:secretpw@elsewhere"]
        {
            let refused = allowed.check(bad).unwrap_err().to_string();
            assert!(!refused.contains("secretpw") && refused.contains("***@"), "{refused}");
        }
        let allowed = prefixes(&["abfss://tables@account.dfs.core.windows.net/lake"]);
        assert!(allowed.check("abfss://tables@account.dfs.core.windows.net/lake/t").is_ok());
        assert!(allowed.check("abfss://others@account.dfs.core.windows.net/lake/t").is_err());
    }

    #[test]
    fn links_are_followed_before_paths_are_compared() {
        let folder = tempfile::tempdir().unwrap();
        let (lake, secret) = (folder.path().join("lake"), folder.path().join("secret"));
        std::fs::create_dir(&lake).unwrap();
        std::fs::create_dir(&secret).unwrap();
        std::os::unix::fs::symlink(&secret, lake.join("out")).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", lake.join("dangling")).unwrap();
        std::os::unix::fs::symlink(&lake, folder.path().join("alias")).unwrap();
        let text = |path: PathBuf| path.display().to_string();
        let allowed = prefixes(&[&text(folder.path().join("alias"))]);
        assert_eq!(allowed.check(&text(lake.join("orders/new"))), Ok(()));
        assert_eq!(allowed.check(&format!("file://{}", text(lake.join("orders")))), Ok(()));
        assert_eq!(allowed.check(&text(folder.path().join("alias/orders"))), Ok(()));
        for bad in [lake.join("out"), lake.join("out/table"), lake.join("dangling/table"), secret.join("table")] {
            assert!(allowed.check(&text(bad.clone())).is_err(), "{}", bad.display());
        }
    }
}
