// SPDX-License-Identifier: Apache-2.0
//! Signed tickets: what was allowed when a ticket was handed out, and to whom, travels in it.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use tributary_types::Clock;

use crate::denied::Denied;
use crate::principal::{Role, Scope};
use crate::secret::ClusterKey;

/// Begins every signed ticket, with the version of its form.
const MAGIC: &[u8] = b"tributary-ticket-1:";
const MAC: usize = 32;

/// What a ticket is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// Who may redeem it; see [`crate::Principal::ticket_name`].
    pub principal: String,
    /// The role that the redeemer must still have.
    pub role: Role,
    /// On what.
    pub scope: Scope,
}

/// Makes and opens tickets.
#[derive(Clone)]
pub struct Tickets {
    key: hmac::Key,
    lifetime: Duration,
    clock: Arc<dyn Clock>,
}

impl Tickets {
    /// Tickets that every process with the same key can open.
    pub fn shared(key: &ClusterKey, lifetime: Duration, clock: Arc<dyn Clock>) -> Self {
        Tickets { key: key.ticket_key().clone(), lifetime, clock }
    }

    /// Tickets that only this process can open; `seed` is random.
    pub fn of_process(seed: [u8; 32], lifetime: Duration, clock: Arc<dyn Clock>) -> Self {
        Tickets { key: hmac::Key::new(hmac::HMAC_SHA256, &seed), lifetime, clock }
    }

    /// When a ticket that is made now expires, in milliseconds since the epoch.
    pub fn expires_millis(&self) -> i64 {
        self.clock.now_millis().saturating_add(i64::try_from(self.lifetime.as_millis()).unwrap_or(i64::MAX))
    }

    /// Whether the bytes have the form of a signed ticket.
    pub fn is_signed(ticket: &[u8]) -> bool {
        ticket.starts_with(MAGIC)
    }

    /// A ticket that carries `payload`.
    pub fn sign(&self, bound: &Bound, payload: &[u8]) -> Vec<u8> {
        let signed = encode(self.expires_millis(), bound, payload);
        let mac = hmac::sign(&self.key, &signed);
        [MAGIC, mac.as_ref(), &signed].concat()
    }

    /// What a ticket carries and what it is bound to. The caller compares both with who redeems it.
    pub fn open<'a>(&self, ticket: &'a [u8]) -> Result<(Bound, &'a [u8]), Denied> {
        let refuse = |what| Denied::Ticket { what };
        let rest = ticket.strip_prefix(MAGIC).ok_or(refuse("it is not signed"))?;
        let (mac, signed) = rest.split_at_checked(MAC).ok_or(refuse("it is cut off"))?;
        hmac::verify(&self.key, signed, mac)
            .map_err(|_| refuse("its signature is not one of this server: it was changed, or is from elsewhere"))?;
        let (expires, bound, payload) = decode(signed).ok_or(refuse("it is of another version"))?;
        if self.clock.now_millis() >= expires {
            return Err(Denied::ExpiredTicket);
        }
        Ok((bound, payload))
    }
}

fn encode(expires_millis: i64, bound: &Bound, payload: &[u8]) -> Vec<u8> {
    let (kind, name) = match &bound.scope {
        Scope::Any => (0, ""),
        Scope::Pipeline(name) => (1, name.as_str()),
        Scope::All => (2, ""),
    };
    let mut signed = expires_millis.to_be_bytes().to_vec();
    signed.extend([bound.role as u8, kind]);
    for text in [bound.principal.as_str(), name] {
        signed.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        signed.extend(text.as_bytes());
    }
    signed.extend(payload);
    signed
}

fn decode(signed: &[u8]) -> Option<(i64, Bound, &[u8])> {
    let (expires, rest) = signed.split_first_chunk::<8>()?;
    let (&[role, kind], rest) = rest.split_first_chunk::<2>()?;
    let role =
        [Role::Reader, Role::Operator, Role::Admin, Role::Peer].into_iter().find(|known| *known as u8 == role)?;
    let (principal, rest) = decode_text(rest)?;
    let (name, payload) = decode_text(rest)?;
    let scope = match kind {
        0 => Scope::Any,
        1 => Scope::Pipeline(name),
        2 => Scope::All,
        _ => return None,
    };
    Some((i64::from_be_bytes(*expires), Bound { principal, role, scope }, payload))
}

fn decode_text(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (text, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some((String::from_utf8(text.to_vec()).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::secret::Secret;

    struct Hand(AtomicI64);

    impl Clock for Hand {
        fn now_millis(&self) -> i64 {
            self.0.load(Ordering::SeqCst)
        }
    }

    fn bound() -> Bound {
        Bound { principal: "ann".into(), role: Role::Reader, scope: Scope::Pipeline("orders".into()) }
    }

    fn tickets(seed: u8, clock: &Arc<Hand>) -> Tickets {
        Tickets::of_process([seed; 32], Duration::from_secs(60), Arc::clone(clock) as Arc<dyn Clock>)
    }

    #[test]
    fn a_ticket_carries_what_it_was_made_for_until_it_expires() {
        let clock = Arc::new(Hand(AtomicI64::new(1_000)));
        let made = tickets(1, &clock);
        let ticket = made.sign(&bound(), b"batch:orders/1");
        assert!(Tickets::is_signed(&ticket) && !Tickets::is_signed(b"batch:orders/1"));
        assert_eq!(made.open(&ticket).unwrap(), (bound(), b"batch:orders/1".as_slice()));
        clock.0.store(60_999, Ordering::SeqCst);
        assert!(made.open(&ticket).is_ok());
        clock.0.store(61_000, Ordering::SeqCst);
        assert_eq!(made.open(&ticket).unwrap_err(), Denied::ExpiredTicket);
    }

    #[test]
    fn a_ticket_that_was_changed_cut_or_made_elsewhere_is_refused() {
        let clock = Arc::new(Hand(AtomicI64::new(0)));
        let made = tickets(1, &clock);
        let ticket = made.sign(&bound(), b"batch:orders/1");
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert!(matches!(made.open(&changed), Err(Denied::Ticket { .. })), "byte {at}");
            assert!(matches!(made.open(&ticket[..at]), Err(Denied::Ticket { .. })), "cut at {at}");
        }
        assert!(matches!(tickets(2, &clock).open(&ticket), Err(Denied::Ticket { .. })));
        assert!(matches!(made.open(b"batch:orders/1"), Err(Denied::Ticket { .. })));
    }

    #[test]
    fn processes_that_share_a_key_open_each_others_tickets() {
        let clock: Arc<dyn Clock> = Arc::new(Hand(AtomicI64::new(0)));
        let key = |text: &str| ClusterKey::new(&Secret::new(text)).unwrap();
        let shared = |text| Tickets::shared(&key(text), Duration::from_secs(1), Arc::clone(&clock));
        let ticket = shared("0123456789abcdef0123456789abcdef").sign(&bound(), b"x");
        assert!(shared("0123456789abcdef0123456789abcdef").open(&ticket).is_ok());
        assert!(shared("another key, another key, another").open(&ticket).is_err());
    }

    #[test]
    fn every_scope_and_role_survives() {
        let clock = Arc::new(Hand(AtomicI64::new(0)));
        let made = tickets(1, &clock);
        for role in [Role::Reader, Role::Operator, Role::Admin, Role::Peer] {
            for scope in [Scope::Any, Scope::All, Scope::Pipeline(String::new())] {
                let bound = Bound { principal: "ü".into(), role, scope };
                assert_eq!(made.open(&made.sign(&bound, b"")).unwrap(), (bound, b"".as_slice()));
            }
        }
    }
}
