// SPDX-License-Identifier: Apache-2.0
//! Who calls, and what that allows.

use std::fmt;

use serde::Deserialize;

use crate::pattern::Pattern;

/// What a principal may do. The first three include each other in this order; `peer` is for the roles of a server that
/// runs in several processes, and includes none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Looks at batches and cursors, and pulls rows.
    Reader,
    /// Runs, plans and cancels batches, and sets cursors.
    Operator,
    /// Defines pipelines.
    Admin,
    /// Calls the services that roles offer each other.
    Peer,
}

impl Role {
    /// The name in files and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Reader => "reader",
            Role::Operator => "operator",
            Role::Admin => "admin",
            Role::Peer => "peer",
        }
    }

    /// Whether this role includes `needed`.
    pub fn includes(self, needed: Role) -> bool {
        match needed {
            Role::Peer => self == Role::Peer,
            _ => self != Role::Peer && self >= needed,
        }
    }
}

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Nothing that belongs to a pipeline.
    Any,
    /// One pipeline.
    Pipeline(String),
    /// Every pipeline: all of them are shown, or which of them cannot be told.
    All,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Any => f.write_str("any pipeline"),
            Scope::Pipeline(name) => write!(f, "pipeline `{name}`"),
            Scope::All => f.write_str("all pipelines"),
        }
    }
}

/// A role on some pipelines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The role.
    pub role: Role,
    /// The pipelines.
    pub pipelines: Vec<Pattern>,
}

impl Grant {
    /// A role on every pipeline.
    pub fn everywhere(role: Role) -> Self {
        Grant { role, pipelines: vec![Pattern::all()] }
    }

    fn covers(&self, scope: &Scope) -> bool {
        match scope {
            Scope::Any => true,
            Scope::Pipeline(name) => self.pipelines.iter().any(|pattern| pattern.fits(name)),
            Scope::All => self.pipelines.iter().any(Pattern::is_all),
        }
    }
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The name, for the log and the history.
    pub name: String,
    /// What it may do.
    pub grants: Vec<Grant>,
}

impl Principal {
    /// The other processes of a server.
    pub fn peer() -> Self {
        Principal { name: "peer".to_string(), grants: vec![Grant::everywhere(Role::Peer)] }
    }

    /// Whether it has `needed` on `scope`.
    pub fn may(&self, needed: Role, scope: &Scope) -> bool {
        self.grants.iter().any(|grant| grant.role.includes(needed) && grant.covers(scope))
    }

    /// What tickets are bound to: of peers any is as good as the other, since whichever got a batch redeems them.
    pub fn ticket_name(&self) -> &str {
        if self.may(Role::Peer, &Scope::Any) { "peer" } else { &self.name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_include_those_below_and_peers_include_none() {
        use Role::{Admin, Operator, Peer, Reader};
        let included: Vec<(Role, Vec<Role>)> = [Reader, Operator, Admin, Peer]
            .map(|role| (role, [Reader, Operator, Admin, Peer].into_iter().filter(|n| role.includes(*n)).collect()))
            .to_vec();
        assert_eq!(
            included,
            [
                (Reader, vec![Reader]),
                (Operator, vec![Reader, Operator]),
                (Admin, vec![Reader, Operator, Admin]),
                (Peer, vec![Peer]),
            ]
        );
    }

    #[test]
    fn a_grant_holds_for_its_pipelines_only() {
        let orders = Grant { role: Role::Operator, pipelines: vec![Pattern::new("orders_*"), Pattern::new("users")] };
        let principal = Principal { name: "airflow".to_string(), grants: vec![orders] };
        let pipeline = |name: &str| Scope::Pipeline(name.to_string());
        assert!(
            principal.may(Role::Operator, &pipeline("orders_eu")) && principal.may(Role::Reader, &pipeline("users"))
        );
        assert!(!principal.may(Role::Admin, &pipeline("users")) && !principal.may(Role::Reader, &pipeline("payments")));
        assert!(principal.may(Role::Reader, &Scope::Any) && !principal.may(Role::Reader, &Scope::All));
        let everything = Principal { name: "root".to_string(), grants: vec![Grant::everywhere(Role::Admin)] };
        assert!(everything.may(Role::Reader, &Scope::All) && !everything.may(Role::Peer, &Scope::Any));
    }
}
