// SPDX-License-Identifier: Apache-2.0
//! The file of principals: who calls by which token or certificate, and what an issuer's tokens allow.
//!
//! ```toml
//! [[principal]]
//! name = "airflow"
//! role = "operator"
//! pipelines = ["orders_*"]
//! token_sha256 = ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]
//! expires = 2027-01-01T00:00:00Z
//!
//! [oidc]
//! issuer = "https://login.example.com"
//! audience = "tributary"
//!
//! [[oidc.rule]]
//! claim = "groups"
//! value = "data-platform"
//! role = "admin"
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use serde::Deserialize;

use crate::denied::Denied;
use crate::oidc::OidcSettings;
use crate::pattern::Pattern;
use crate::principal::{Grant, Principal, Role};
use crate::secret::token_hash;
use crate::watched::{LoadError, read};

/// What the file says.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthFile {
    #[serde(default, rename = "principal")]
    principals: Vec<Entry>,
    /// Whose tokens are taken beside the listed ones.
    pub oidc: Option<OidcSettings>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    role: Role,
    #[serde(default = "everywhere")]
    pipelines: Vec<Pattern>,
    #[serde(default)]
    token_sha256: Vec<String>,
    #[serde(default)]
    certificate: Vec<String>,
    expires: Option<toml::value::Datetime>,
    #[serde(skip)]
    expires_millis: Option<i64>,
}

pub(crate) fn everywhere() -> Vec<Pattern> {
    vec![Pattern::all()]
}

impl Entry {
    fn principal(&self) -> Principal {
        let grant = Grant { role: self.role, pipelines: self.pipelines.clone() };
        Principal { name: self.name.clone(), grants: vec![grant] }
    }
}

impl AuthFile {
    /// Reads the file. Every problem is told at once.
    pub fn load(file: &Path) -> Result<Self, LoadError> {
        let bytes = read(file)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| LoadError::new(file, "it is no text"))?;
        AuthFile::parse(text).map_err(|what| LoadError::new(file, what))
    }

    /// The same of a text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parsed: AuthFile = toml::from_str(text).map_err(|e| {
            // The parser quotes the line, which may hold what somebody took for the place of a token.
            let line = e.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            format!("line {line}: {}", e.message())
        })?;
        let mut problems = Vec::new();
        let mut known: BTreeMap<String, String> = BTreeMap::new();
        for entry in &mut parsed.principals {
            let name = entry.name.clone();
            let mut say = |what: String| problems.push(format!("principal `{name}`: {what}"));
            if name.trim().is_empty() || name == "peer" {
                say("it needs a name, and not `peer`".to_string());
            }
            if entry.token_sha256.is_empty() && entry.certificate.is_empty() {
                say("it has neither `token_sha256` nor `certificate`, so nobody could be it".to_string());
            }
            if entry.pipelines.is_empty() {
                say("`pipelines` is empty: leave it out for all of them".to_string());
            }
            for hash in &mut entry.token_sha256 {
                *hash = hash.to_ascii_lowercase();
                if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    // Not repeated: it may be the token itself.
                    say("`token_sha256` is not 64 hexadecimal digits: write the SHA-256 of the token".to_string());
                }
            }
            for identity in entry.token_sha256.iter().chain(&entry.certificate) {
                if let Some(other) = known.insert(identity.clone(), name.clone()) {
                    say(format!("it has a token or a certificate that `{other}` has too"));
                }
            }
            entry.expires_millis = match entry.expires.as_ref().map(millis_of) {
                None => None,
                Some(Some(millis)) => Some(millis),
                Some(None) => {
                    say("`expires` needs date, time and offset: 2027-01-01T00:00:00Z".to_string());
                    None
                }
            };
        }
        problems.extend(parsed.oidc.iter().flat_map(OidcSettings::problems));
        match problems.is_empty() {
            true => Ok(parsed),
            false => Err(problems.join("; ")),
        }
    }

    /// Whose token it is; `None` when it is nobody's. Every hash is compared, each in the same time whatever it is.
    pub(crate) fn of_token(&self, token: &str, now_millis: i64) -> Result<Option<Principal>, Denied> {
        let hash = token_hash(token);
        let mut found = None;
        for entry in &self.principals {
            for known in &entry.token_sha256 {
                if verify_slices_are_equal(known.as_bytes(), hash.as_bytes()).is_ok() {
                    found = Some(entry);
                }
            }
        }
        let Some(entry) = found else { return Ok(None) };
        match entry.expires_millis {
            Some(expires) if now_millis >= expires => Err(Denied::ExpiredToken { principal: entry.name.clone() }),
            _ => Ok(Some(entry.principal())),
        }
    }

    /// Whose certificate has one of these names.
    pub(crate) fn of_certificate(&self, names: &[String], now_millis: i64) -> Option<Principal> {
        let has = |entry: &&Entry| entry.certificate.iter().any(|known| names.contains(known));
        let valid = |entry: &&Entry| entry.expires_millis.is_none_or(|expires| now_millis < expires);
        self.principals.iter().filter(has).find(valid).map(Entry::principal)
    }
}

/// Milliseconds since the epoch; `None` when a part of the time is missing.
fn millis_of(time: &toml::value::Datetime) -> Option<i64> {
    let (date, clock) = (time.date?, time.time?);
    let offset = match time.offset? {
        toml::value::Offset::Z => 0,
        toml::value::Offset::Custom { minutes } => i64::from(minutes),
    };
    let seconds = i64::from(clock.hour) * 3600 + i64::from(clock.minute) * 60 + i64::from(clock.second);
    let days = days_since_epoch(i64::from(date.year), i64::from(date.month), i64::from(date.day));
    Some((days * 86_400 + seconds - offset * 60) * 1000)
}

/// Days from 1970-01-01 in the Gregorian calendar, counted in years that begin in March so that the leap day is last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::Scope;

    fn file(token: &str) -> AuthFile {
        AuthFile::parse(&format!(
            "[[principal]]\nname = \"airflow\"\nrole = \"operator\"\npipelines = [\"orders_*\"]\ntoken_sha256 = [\"{}\"]\n\
             expires = 2027-01-01T01:00:00+01:00\n[[principal]]\nname = \"pod\"\nrole = \"reader\"\ncertificate = \
             [\"pod.example\"]\n",
            token_hash(token).to_uppercase(),
        ))
        .unwrap()
    }

    #[test]
    fn a_token_is_found_by_its_hash_until_it_expires() {
        let expires = 1_798_761_600_000;
        let found = file("t0ken").of_token("t0ken", expires - 1).unwrap().unwrap();
        assert_eq!(found.name, "airflow");
        assert!(found.may(Role::Operator, &Scope::Pipeline("orders_eu".to_string())));
        assert_eq!(file("t0ken").of_token("other", 0), Ok(None));
        let gone = file("t0ken").of_token("t0ken", expires).unwrap_err();
        assert_eq!(gone, Denied::ExpiredToken { principal: "airflow".to_string() });
    }

    #[test]
    fn a_certificate_is_found_by_a_name_in_it() {
        let names = ["other.example".to_string(), "pod.example".to_string()];
        assert_eq!(file("t").of_certificate(&names, 0).unwrap().name, "pod");
        assert_eq!(file("t").of_certificate(&names[..1], 0), None);
    }

    #[test]
    fn every_problem_is_told_and_no_token_repeated() {
        let refused = AuthFile::parse(
            "[[principal]]\nname = \"a\"\nrole = \"reader\"\ntoken_sha256 = [\"my-plain-token\"]\n[[principal]]\nname = \"b\"\n\
             role = \"admin\"\npipelines = []\n[[principal]]\nname = \"c\"\nrole = \"admin\"\ncertificate = [\"x\"]\nexpires = \
             2027-01-01\n[[principal]]\nname = \"d\"\nrole = \"admin\"\ncertificate = [\"x\"]\n",
        )
        .unwrap_err();
        for told in
            ["64 hexadecimal digits", "`b`: it has neither", "`pipelines` is empty", "needs date, time", "`c` has too"]
        {
            assert!(refused.contains(told), "{told}: {refused}");
        }
        assert!(!refused.contains("my-plain-token"), "{refused}");
        let unknown = AuthFile::parse("[[principal]]\nname = \"a\"\nrole = \"reader\"\ntoken = \"my-plain-token\"\n")
            .unwrap_err();
        assert!(unknown.contains("line 4") && unknown.contains("token") && !unknown.contains("my-plain"), "{unknown}");
        assert!(AuthFile::parse("[[principal]]\nname = \"a\"\nrole = \"root\"\n").unwrap_err().contains("line 3"));
    }

    #[test]
    fn days_are_counted_as_the_calendar_does() {
        for (date, days) in [((1970, 1, 1), 0), ((2000, 2, 29), 11_016), ((2000, 3, 1), 11_017), ((2027, 1, 1), 20_819)]
        {
            assert_eq!(days_since_epoch(date.0, date.1, date.2), days, "{date:?}");
        }
    }
}
