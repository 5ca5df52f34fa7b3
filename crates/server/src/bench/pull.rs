// SPDX-License-Identifier: Apache-2.0
//! Pulling a batch, as a ratio to an echo of the same rows over the same loopback.
//!
//! Both sides run in this process, client and server, over as many streams at once. Ours reads files, which the echo does
//! not; the echo sends each row twice, there and back.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightClient, FlightDescriptor, Ticket};
use futures::TryStreamExt;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tributary_rpc::{Channel, Echo, MESSAGE_LIMIT, connect_lazily};

use super::source::BuildError;
use super::{Made, Plan, Ratio, make_source, run_batch};
use crate::embedded::Embedded;
use crate::roles::Hosted;
use crate::serve::{self, Options, PullOptions};

/// Rows of a copy are those of its source.
const SQL: &str = "SELECT * FROM <SRC:orders>";

/// A throughput of at least 0.8 of the echo's.
const BOUND: f64 = 1.25;

/// Measures it in a fresh directory.
pub async fn run(roles: &Embedded, directory: &Path, plan: &Plan) -> Result<Ratio, BuildError> {
    let source: Made = make_source(roles, directory, "orders", plan.rows).await?;
    let batch = run_batch(roles, directory, &[source], SQL, 0).await?;
    let any = "127.0.0.1:0".parse().map_err(|_| "loopback has no address")?;
    let options = Options { listen: any, http: None, metrics: None, peers: Vec::new(), pulls: PullOptions::default() };
    let server = serve::start(Hosted::from(roles.clone()), options).await?;
    let ours = connect_lazily(&format!("http://{}", server.address()))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let echo = connect_lazily(&format!("http://{}", listener.local_addr()?))?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let echoing = tonic::transport::Server::builder().add_service(Echo.into_service()).serve_with_incoming(incoming);
    let echoing = tokio::spawn(echoing);

    let flight = format!("batch:{}", batch.name);
    let mut ratio = Ratio::new("pull", "a raw Flight echo of the same rows", BOUND);
    for run in 0..=plan.runs {
        let began = Instant::now();
        let streams = pull(&ours, &flight).await?;
        let ours_took = began.elapsed().as_secs_f64();
        let pulled = count(&streams);
        let began = Instant::now();
        let echoed = echo_all(&echo, streams).await?;
        let theirs_took = began.elapsed().as_secs_f64();
        if pulled != plan.rows || echoed != pulled {
            return Err(format!("{pulled} rows were pulled and {echoed} echoed, expected {}", plan.rows).into());
        }
        // The first pair only warms up.
        if run > 0 {
            ratio.add(ours_took, theirs_took);
        }
    }
    echoing.abort();
    Ok(ratio)
}

fn count(streams: &[Vec<RecordBatch>]) -> usize {
    streams.iter().flatten().map(RecordBatch::num_rows).sum()
}

fn client(channel: &Channel) -> FlightClient {
    let inner = FlightServiceClient::new(channel.clone().into_transport()).max_decoding_message_size(MESSAGE_LIMIT);
    FlightClient::new_from_inner(inner)
}

/// The rows of each endpoint of a flight, all read at once.
async fn pull(channel: &Channel, flight: &str) -> Result<Vec<Vec<RecordBatch>>, BuildError> {
    let info = client(channel).get_flight_info(FlightDescriptor::new_path(vec![flight.to_string()])).await?;
    let tickets = info.endpoint.into_iter().filter_map(|endpoint| endpoint.ticket);
    let jobs = tickets.map(|ticket: Ticket| {
        let mut client = client(channel);
        tokio::spawn(async move { client.do_get(ticket).await?.try_collect::<Vec<_>>().await })
    });
    let mut streams = Vec::new();
    for job in jobs.collect::<Vec<_>>() {
        streams.push(job.await??);
    }
    Ok(streams)
}

/// Sends each stream's rows to the echo and decodes what comes back, all at once.
async fn echo_all(channel: &Channel, streams: Vec<Vec<RecordBatch>>) -> Result<usize, BuildError> {
    let jobs = streams.into_iter().filter(|rows| !rows.is_empty()).map(|rows| {
        let mut client = client(channel);
        tokio::spawn(async move {
            let schema = Arc::clone(&rows[0].schema());
            let sent = futures::stream::iter(rows.into_iter().map(Ok));
            let messages = FlightDataEncoderBuilder::new().with_schema(schema).build(sent);
            client.do_exchange(messages).await?.try_collect::<Vec<_>>().await
        })
    });
    let mut echoed = Vec::new();
    for job in jobs.collect::<Vec<_>>() {
        echoed.push(job.await??);
    }
    Ok(count(&echoed))
}
