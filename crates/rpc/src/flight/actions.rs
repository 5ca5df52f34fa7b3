// SPDX-License-Identifier: Apache-2.0
//! Actions: cancelling a pull, renewing a ticket, prepared statements.

use std::collections::BTreeSet;

use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, ActionClosePreparedStatementRequest,
    ActionCreatePreparedStatementRequest, Any, ProstMessageExt,
};
use arrow_flight::{
    Action, ActionType, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightInfo,
    RenewFlightEndpointRequest, Ticket,
};
use prost::Message;
use tonic::Status;

use super::pulls::endpoint;
use super::server::FlightServer;
use super::sql::answer;
use super::ticket::{PullTicket, is_pull};
use crate::fault::{malformed, unsupported};

const CANCEL: &str = "CancelFlightInfo";
const RENEW: &str = "RenewFlightEndpoint";
const CREATE_PREPARED: &str = "CreatePreparedStatement";
const CLOSE_PREPARED: &str = "ClosePreparedStatement";
const CANCEL_QUERY: &str = "CancelQuery";

/// The actions that can be asked for.
pub(crate) fn offered() -> Vec<ActionType> {
    let described = [
        (
            CANCEL,
            "Ends every stream of a pull or query. Request: CancelFlightInfoRequest; answer: CancelFlightInfoResult",
        ),
        (RENEW, "Makes a ticket good for longer. Request: RenewFlightEndpointRequest; answer: FlightEndpoint"),
        (
            CREATE_PREPARED,
            "Prepares a SELECT. Request: ActionCreatePreparedStatementRequest; answer: \
                           ActionCreatePreparedStatementResult",
        ),
        (CLOSE_PREPARED, "Closes a prepared statement. Request: ActionClosePreparedStatementRequest"),
        (
            CANCEL_QUERY,
            "CancelFlightInfo as earlier drivers ask for it. Request: ActionCancelQueryRequest; answer: \
                        ActionCancelQueryResult",
        ),
    ];
    let action = |(name, what): (&str, &str)| ActionType { r#type: name.to_string(), description: what.to_string() };
    described.into_iter().map(action).collect()
}

impl FlightServer {
    pub(crate) async fn act(&self, action: Action) -> Result<Vec<arrow_flight::Result>, Status> {
        let Action { r#type: name, body } = action;
        match name.as_str() {
            CANCEL => {
                let request: CancelFlightInfoRequest = decoded(&name, &body)?;
                let status = self.cancel_info(&request.info.unwrap_or_default()).await? as i32;
                Ok(vec![arrow_flight::Result::new(CancelFlightInfoResult { status }.encode_to_vec())])
            }
            CANCEL_QUERY => {
                let request: ActionCancelQueryRequest = unpacked(&name, &body)?;
                let info: FlightInfo = decoded(&name, &request.info)?;
                let result = self.cancel_info(&info).await? as i32;
                Ok(vec![answer(&ActionCancelQueryResult { result })])
            }
            RENEW => {
                let request: RenewFlightEndpointRequest = decoded(&name, &body)?;
                let old = request.endpoint.unwrap_or_default();
                let ticket: Ticket = old.ticket.unwrap_or_default();
                if !PullTicket::is(&ticket.ticket) {
                    return Err(malformed("the endpoint's ticket never expires, so there is nothing to renew"));
                }
                let mut ticket = PullTicket::open(&ticket.ticket, self.clock.now_millis())?;
                ticket.expires_millis = self.expires_millis();
                Ok(vec![arrow_flight::Result::new(endpoint(&ticket, old.location).encode_to_vec())])
            }
            CREATE_PREPARED => {
                let request: ActionCreatePreparedStatementRequest = unpacked(&name, &body)?;
                let prepared = self.prepare(request.query, request.transaction_id.as_ref()).await?;
                Ok(vec![answer(&prepared.answer()?)])
            }
            CLOSE_PREPARED => {
                // Nothing is kept of it that could be closed.
                let _: ActionClosePreparedStatementRequest = unpacked(&name, &body)?;
                Ok(Vec::new())
            }
            other => Err(unsupported(format!(
                "the action `{other}` is not offered; ListActions says which are. Batches are run over \
                 tributary.coordinator.v1"
            ))),
        }
    }

    async fn cancel_info(&self, info: &FlightInfo) -> Result<CancelStatus, Status> {
        let tickets = info.endpoint.iter().filter_map(|endpoint| endpoint.ticket.as_ref());
        // Also of tickets that expired: their streams may go on.
        let ours = tickets.filter(|ticket| PullTicket::is(&ticket.ticket));
        let pulls: Result<BTreeSet<String>, Status> =
            ours.map(|ticket| PullTicket::decode(&ticket.ticket).map(|ticket| ticket.pull)).collect();
        let mut pulls = pulls?;
        if pulls.is_empty() {
            // Tickets that are sealed on their way to a client are not read here; the info has the name as well.
            pulls.extend(std::str::from_utf8(&info.app_metadata).ok().filter(|name| is_pull(name)).map(str::to_string));
        }
        if pulls.is_empty() {
            return Ok(CancelStatus::NotCancellable);
        }
        for pull in &pulls {
            self.cancel(pull).await?;
        }
        Ok(CancelStatus::Cancelled)
    }
}

fn decoded<T: Message + Default>(action: &str, body: &[u8]) -> Result<T, Status> {
    T::decode(body).map_err(|e| malformed(format!("the request of the action `{action}` cannot be read: {e}")))
}

fn unpacked<T: ProstMessageExt>(action: &str, body: &[u8]) -> Result<T, Status> {
    let any: Any = decoded(action, body)?;
    let message = any.unpack().map_err(|e| malformed(format!("the request of the action `{action}`: {e}")))?;
    message.ok_or_else(|| malformed(format!("the request of the action `{action}` is of another type")))
}
