// SPDX-License-Identifier: Apache-2.0
//! Actions of Flight: those about a pull take what only its caller has, the others are questions about everything.

use arrow_flight::{Action, FlightEndpoint, RenewFlightEndpointRequest};
use prost::Message;
use tonic::body::Body;
use tributary_security::{Denied, Principal, Role, Scope, Tickets};

use super::messages::{body_of, only_message};
use super::methods::{Answers, Method};
use super::{After, Guard, open, require};

/// Renews a ticket, which is opened on its way in and signed anew on its way out.
const RENEW: &str = "RenewFlightEndpoint";
/// Cancel a pull by its tickets or its random name: whoever has either was given them.
const CANCEL: [&str; 2] = ["CancelFlightInfo", "CancelQuery"];

impl Guard {
    pub(super) async fn act(
        &self,
        method: &Method,
        body: Body,
        caller: Option<(Principal, &Tickets)>,
        after: &mut After,
    ) -> Result<Body, Denied> {
        let message = self.in_time(only_message(body, self.limits.request_size)).await?;
        let Some((principal, tickets)) = caller else { return Ok(body_of(&message)) };
        let malformed = |e: prost::DecodeError| Denied::Malformed { what: e.to_string() };
        let mut action = Action::decode(message.clone()).map_err(malformed)?;
        if action.r#type != RENEW {
            if !CANCEL.contains(&action.r#type.as_str()) {
                require(&principal, Role::Reader, &Scope::All, method)?;
            }
            return Ok(body_of(&message));
        }
        let mut request = RenewFlightEndpointRequest::decode(action.body).map_err(malformed)?;
        if let Some(ticket) = request.endpoint.as_mut().and_then(|endpoint| endpoint.ticket.as_mut()) {
            let (bound, _) = tickets.open(&ticket.ticket)?;
            ticket.ticket = open(tickets, &principal, &ticket.ticket, method)?;
            after.tickets = Some((tickets.clone(), bound, Answers::Renewed));
        }
        action.body = request.encode_to_vec().into();
        Ok(body_of(&action.encode_to_vec()))
    }
}

/// The answer of an action with the ticket of the endpoint in it signed.
pub(super) fn sign_renewed(message: &[u8], sign: impl Fn(&mut FlightEndpoint)) -> Option<Vec<u8>> {
    let mut answer = arrow_flight::Result::decode(message).ok()?;
    let mut endpoint = FlightEndpoint::decode(answer.body).ok()?;
    sign(&mut endpoint);
    answer.body = endpoint.encode_to_vec().into();
    Some(answer.encode_to_vec())
}
