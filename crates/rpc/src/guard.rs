// SPDX-License-Identifier: Apache-2.0
//! The edge of a server: every call passes here before any role sees it.
//!
//! A call takes a place among those under way, its caller is found out, and the table of methods says which role it
//! takes. What it is about (a pipeline, locations) is read from its message, which is then passed on as it came. Tickets
//! are signed on their way out and opened on their way in, so that what serves flights knows nothing of either.
//!
//! A server that does not ask who calls ([`Guard::open`]) keeps the limits and the locations.

mod actions;
mod answers;
mod messages;
mod methods;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow_flight::{FlightData, FlightEndpoint, FlightInfo, PollInfo, Ticket};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body::Body as _;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tower::{Layer, Service};
use tributary_security::{Authenticator, Bound, Denied, Prefixes, Principal, Role, Scope, Tickets, metrics};
use tributary_types::Fault as _;

use crate::accept::Connection;
use crate::flight::asked;
use answers::{Answer, Rows};
use messages::{MapMessages, body_of, only_message};
use methods::{Answers, Asked, Method, What, Who};

pub(crate) use messages::first_message;
pub(crate) use methods::{DO_GET, DO_PUT};

/// How much a server takes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardLimits {
    /// Requests under way at once; those of the health service do not count.
    pub requests: usize,
    /// Bytes of a request of the control plane. Rows are bounded by [`crate::MESSAGE_LIMIT`].
    pub request_size: usize,
    /// Time that a request's message may take to arrive.
    pub request_within: Duration,
    /// Time that rows wait to be taken.
    pub stall: Duration,
}

impl Default for GuardLimits {
    fn default() -> Self {
        GuardLimits {
            requests: 1024,
            request_size: 16 << 20,
            request_within: Duration::from_secs(60),
            stall: Duration::from_secs(300),
        }
    }
}

/// Who called, for whoever serves the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller(pub Principal);

/// Lets calls in, or not.
pub struct Guard {
    limits: GuardLimits,
    places: Arc<Semaphore>,
    prefixes: Prefixes,
    known: Option<(Authenticator, Tickets)>,
}

impl Guard {
    /// Asks nobody who they are.
    pub fn open(limits: GuardLimits, prefixes: Prefixes) -> Self {
        let places = Arc::new(Semaphore::new(limits.requests.min(Semaphore::MAX_PERMITS)));
        Guard { limits, places, prefixes, known: None }
    }

    /// Lets in whom `authenticator` knows, and hands out and takes `tickets`.
    #[must_use]
    pub fn asking(mut self, authenticator: Authenticator, tickets: Tickets) -> Self {
        self.known = Some((authenticator, tickets));
        self
    }

    /// The layer to put around a server's routes.
    pub fn layer(self) -> GuardLayer {
        GuardLayer(Arc::new(self))
    }

    /// The call as it is passed on, and what is to be done with its answer.
    async fn admit(&self, request: Request<Body>) -> Result<(Request<Body>, After), Denied> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path().to_string();
        let method = methods::find(&path);
        if method.is_some_and(|method| method.who == Who::Everybody) {
            return Ok((Request::from_parts(parts, body), After::default()));
        }
        let busy = |_| Denied::Busy { limit: self.limits.requests };
        let mut after =
            After { place: Some(Arc::clone(&self.places).try_acquire_owned().map_err(busy)?), ..After::default() };
        let certificate = match parts.extensions.remove::<Connection>() {
            Some(connection) => {
                // Where handlers look for the caller's address.
                parts.extensions.insert(connection.address);
                connection.certificate
            }
            None => None,
        };
        let caller = match &self.known {
            None => None,
            Some((authenticator, tickets)) => {
                let token = take_token(&mut parts.headers)?;
                let principal = authenticator.authenticate(token.as_deref(), certificate.as_deref()).await?;
                parts.extensions.insert(Caller(principal.clone()));
                Some((principal, tickets))
            }
        };
        let Some(method) = method else {
            // Without a rule nobody may; where nobody is asked, the routes say that there is no such method.
            return match caller {
                Some(_) => Err(Denied::Method { method: path }),
                None => Ok((Request::from_parts(parts, body), after)),
            };
        };
        let body = self.look_into(method, body, caller, &mut after).await?;
        Ok((Request::from_parts(parts, body), after))
    }

    async fn look_into(
        &self,
        method: &'static Method,
        body: Body,
        caller: Option<(Principal, &Tickets)>,
        after: &mut After,
    ) -> Result<Body, Denied> {
        if let (Some((principal, _)), Who::Has(role)) = (&caller, method.who) {
            // Before its message is read: a stranger costs no memory.
            require(principal, role, &Scope::Any, method)?;
        }
        let read = match method.what {
            What::Nothing => return Ok(body),
            What::Message(read) | What::Flights(read, _) => read,
            What::Ticket => {
                after.rows = Some(self.limits.stall);
                return self.redeem(method, body, caller).await;
            }
            What::Rows => return self.take_rows(method, body, caller).await,
            What::Action => return self.act(method, body, caller, after).await,
        };
        let message = self.in_time(only_message(body, self.limits.request_size)).await?;
        let asked = read(&message).map_err(|e| Denied::Malformed { what: e.to_string() })?;
        if let (Some((principal, _)), Who::Has(role)) = (&caller, method.who) {
            require(principal, role, &asked.scope, method)?;
        }
        self.check_locations(&asked)?;
        if let (Some((principal, tickets)), What::Flights(_, answers)) = (&caller, method.what) {
            let bound =
                Bound { principal: principal.ticket_name().to_string(), role: Role::Reader, scope: asked.scope };
            after.tickets = Some(((*tickets).clone(), bound, answers));
        }
        Ok(body_of(&message))
    }

    fn check_locations(&self, asked: &Asked) -> Result<(), Denied> {
        asked.locations.iter().try_for_each(|location| self.prefixes.check(location)).map_err(Denied::Url)
    }

    /// Opens the ticket of a `DoGet`. The name of a flight is none, and is taken from whoever may ask for the flight.
    async fn redeem(&self, method: &Method, body: Body, caller: Option<(Principal, &Tickets)>) -> Result<Body, Denied> {
        let Some((principal, tickets)) = caller else { return Ok(body) };
        let message = self.in_time(only_message(body, crate::MESSAGE_LIMIT)).await?;
        let mut ticket = Ticket::decode(message.clone()).map_err(|e| Denied::Malformed { what: e.to_string() })?;
        if let Some(asked) = methods::named_flight(&ticket.ticket) {
            require(&principal, Role::Reader, &asked.scope, method)?;
            self.check_locations(&asked)?;
            return Ok(body_of(&message));
        }
        let payload = open(tickets, &principal, &ticket.ticket, method)?;
        ticket.ticket = payload;
        Ok(body_of(&ticket.encode_to_vec()))
    }

    /// Opens what the first message of a `DoPut` between roles carries; any other `DoPut` is a question about everything.
    async fn take_rows(
        &self,
        method: &Method,
        body: Body,
        caller: Option<(Principal, &Tickets)>,
    ) -> Result<Body, Denied> {
        let Some((principal, tickets)) = caller else { return Ok(body) };
        let (message, rest) = self.in_time(first_message(body, crate::MESSAGE_LIMIT)).await?;
        let mut first = FlightData::decode(message).map_err(|e| Denied::Malformed { what: e.to_string() })?;
        if !is_stage(&first) {
            require(&principal, Role::Reader, &Scope::All, method)?;
        } else {
            require(&principal, Role::Peer, &Scope::Any, method)?;
            first.app_metadata = open(tickets, &principal, &first.app_metadata, method)?;
        }
        Ok(rest.after(&first.encode_to_vec()))
    }

    async fn in_time<T>(&self, read: impl Future<Output = Result<T, Denied>>) -> Result<T, Denied> {
        let within = self.limits.request_within;
        let slow = |_| Denied::Slow { seconds: within.as_secs() };
        tokio::time::timeout(within, read).await.map_err(slow)?
    }
}

/// Whether a `DoPut` is one of rows to stage, which roles send each other.
pub(crate) fn is_stage(first: &FlightData) -> bool {
    first.flight_descriptor.as_ref().is_some_and(asked::is_stage)
}

/// What a ticket carries, if it is the caller's.
fn open(tickets: &Tickets, principal: &Principal, ticket: &[u8], method: &Method) -> Result<Bytes, Denied> {
    let (bound, payload) = tickets.open(ticket)?;
    if bound.principal != principal.ticket_name() {
        return Err(Denied::Ticket { what: "it was made for somebody else" });
    }
    // Since it was made, the role may have been taken away.
    require(principal, bound.role, &bound.scope, method)?;
    Ok(Bytes::copy_from_slice(payload))
}

fn require(principal: &Principal, needed: Role, scope: &Scope, method: &Method) -> Result<(), Denied> {
    match principal.may(needed, scope) {
        true => Ok(()),
        false => Err(Denied::Role {
            principal: principal.name.clone(),
            method: method.path.trim_start_matches('/').to_string(),
            needed,
            scope: scope.clone(),
        }),
    }
}

/// Takes the token out of the headers, so that nothing behind can log it.
fn take_token(headers: &mut HeaderMap) -> Result<Option<String>, Denied> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter().cloned().collect::<Vec<_>>();
    headers.remove(header::AUTHORIZATION);
    let bad = |what: &str| Denied::BadToken { what: what.to_string() };
    let given = match (all.pop(), all.is_empty()) {
        (None, _) => return Ok(None),
        (Some(given), true) => given,
        (Some(_), false) => return Err(bad("there are several")),
    };
    let text = given.to_str().map_err(|_| bad("it is no text"))?;
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim().to_string())),
        _ => Err(bad("it is sent in another way than `authorization: Bearer TOKEN`")),
    }
}

/// What is to be done with an answer.
#[derive(Default)]
struct After {
    place: Option<OwnedSemaphorePermit>,
    tickets: Option<(Tickets, Bound, Answers)>,
    rows: Option<Duration>,
}

impl After {
    fn over(self, mut body: Body) -> Body {
        // A refusal has no body, and its headers end the stream: an empty body behind them breaks clients in C++.
        if body.is_end_stream() {
            return body;
        }
        if let Some((tickets, bound, answers)) = self.tickets {
            body = MapMessages::over(body, move |message| sign(message, &tickets, &bound, answers));
        }
        if let Some(stall) = self.rows {
            body = Rows::over(body, stall);
        }
        match self.place {
            Some(place) => Answer::over(body, place),
            None => body,
        }
    }
}

/// The answer with its tickets signed.
fn sign(message: &[u8], tickets: &Tickets, bound: &Bound, answers: Answers) -> Option<Vec<u8>> {
    let sign_one = |endpoint: &mut FlightEndpoint| {
        if let Some(ticket) = &mut endpoint.ticket {
            ticket.ticket = tickets.sign(bound, &ticket.ticket).into();
            let millis = tickets.expires_millis();
            let expires = prost_types::Timestamp {
                seconds: millis.div_euclid(1000),
                nanos: (millis.rem_euclid(1000) * 1_000_000) as i32,
            };
            endpoint.expiration_time = match endpoint.expiration_time.take() {
                Some(earlier) if earlier.seconds < expires.seconds => Some(earlier),
                _ => Some(expires),
            };
        }
    };
    let sign_all = |info: &mut FlightInfo| info.endpoint.iter_mut().for_each(sign_one);
    match answers {
        Answers::Info => {
            let mut info = FlightInfo::decode(message).ok()?;
            sign_all(&mut info);
            Some(info.encode_to_vec())
        }
        Answers::Poll => {
            let mut poll = PollInfo::decode(message).ok()?;
            poll.info.iter_mut().for_each(sign_all);
            Some(poll.encode_to_vec())
        }
        Answers::Renewed => actions::sign_renewed(message, sign_one),
    }
}

/// Puts a [`Guard`] around routes.
#[derive(Clone)]
pub struct GuardLayer(Arc<Guard>);

impl<S> Layer<S> for GuardLayer {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { guard: Arc::clone(&self.0), inner }
    }
}

/// Routes behind a guard.
#[derive(Clone)]
pub struct Guarded<S> {
    guard: Arc<Guard>,
    inner: S,
}

impl<S> Service<Request<Body>> for Guarded<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The one that is ready is the one that is called.
        let again = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, again);
        let guard = Arc::clone(&self.guard);
        Box::pin(async move {
            let path = request.uri().path().to_string();
            let from = request.extensions().get::<Connection>().and_then(|connection| connection.address.remote_addr());
            match guard.admit(request).await {
                Ok((request, after)) => Ok(inner.call(request).await?.map(|body| after.over(body))),
                Err(denied) => {
                    let reason = denied.reason();
                    metrics::denied(reason);
                    let from = from.map(|address| address.to_string()).unwrap_or_default();
                    tracing::info!(method = path, reason, from, error = %denied, "a request was refused");
                    Ok(crate::fault::denied(&denied).into_http())
                }
            }
        })
    }
}

#[cfg(test)]
mod tests;
