// SPDX-License-Identifier: Apache-2.0
//! Requests that read as one flight here and as another there.

use super::*;

/// A query, as a command of Flight SQL.
fn secret_query() -> Vec<u8> {
    use arrow_flight::sql::ProstMessageExt as _;
    let query = "SELECT * FROM tables.secret".to_string();
    arrow_flight::sql::CommandStatementQuery { query, transaction_id: None }.as_any().encode_to_vec()
}

#[tokio::test]
async fn a_descriptor_that_names_a_batch_and_carries_a_query_opens_neither() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    let batch = server.batch("orders").await;
    let named = FlightDescriptor::new_path(vec![format!("batch:{batch}")]);
    assert!(server.flight("reads-orders").get_flight_info(named.clone()).await.is_ok());
    let both = FlightDescriptor { cmd: secret_query().into(), ..named };
    for kind in [1, 2, 0, 3] {
        let both = FlightDescriptor { r#type: kind, ..both.clone() };
        let mut reader = server.flight("reads-orders");
        assert_refused(
            &reader.get_flight_info(both.clone()).await.unwrap_err(),
            Code::PermissionDenied,
            "ROLE_MISSING",
        );
        assert_refused(
            &reader.poll_flight_info(both.clone()).await.unwrap_err(),
            Code::PermissionDenied,
            "ROLE_MISSING",
        );
        assert_refused(&reader.get_schema(both.clone()).await.unwrap_err(), Code::PermissionDenied, "ROLE_MISSING");
        // Whoever may see everything learns what is wrong.
        let mut reader = server.flight("reads-all");
        let told = [
            reader.get_flight_info(both.clone()).await.unwrap_err(),
            reader.poll_flight_info(both.clone()).await.unwrap_err(),
            reader.get_schema(both.clone()).await.unwrap_err(),
        ];
        for told in told {
            assert_eq!(told.code(), Code::InvalidArgument, "{told:?}");
            assert!(told.message().contains("descriptor"), "{told:?}");
        }
    }
}

#[tokio::test]
async fn a_ticket_that_begins_as_a_batch_and_goes_on_as_a_query_is_the_name_of_no_batch() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    server.batch("orders").await;
    // Protobuf passes over the first 99 bytes: field 12 with 97 of them.
    let mut ticket = b"batch:orders/".to_vec();
    ticket.resize(99, b'A');
    ticket.extend(secret_query());
    let refused = redeem(&server, "reads-orders", Ticket::new(ticket.clone())).await.unwrap_err();
    assert_refused(&refused, Code::NotFound, "BATCH_NOT_FOUND");
    let as_command = FlightDescriptor::new_cmd(ticket.clone());
    let refused = server.flight("reads-orders").get_flight_info(as_command).await.unwrap_err();
    assert_refused(&refused, Code::NotFound, "BATCH_NOT_FOUND");
    ticket.push(0xff);
    let refused = redeem(&server, "admin", Ticket::new(ticket)).await.unwrap_err();
    assert_refused(&refused, Code::PermissionDenied, "TICKET_INVALID");
    // A query without a name before it is a ticket that nobody signed.
    let refused = redeem(&server, "admin", Ticket::new(secret_query())).await.unwrap_err();
    assert_refused(&refused, Code::PermissionDenied, "TICKET_INVALID");
}

#[tokio::test]
async fn rows_to_stage_that_carry_a_query_as_well_are_not_taken_from_a_peer() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    let mut descriptor = FlightDescriptor::new_path(vec![STAGE_PATH.to_string()]);
    descriptor.cmd = secret_query().into();
    let rows = |descriptor| futures::stream::iter([FlightData::new().with_descriptor(descriptor)]);
    let mut peer = FlightServiceClient::new(server.peer(KEY));
    let refused = peer.do_put(rows(descriptor.clone())).await.unwrap_err();
    assert_refused(&refused, Code::PermissionDenied, "ROLE_MISSING");
    let refused = server.flight("reads-all").do_put(rows(descriptor)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
}

async fn shake_hands(channel: Channel) -> Result<usize, Status> {
    let request = futures::stream::iter([arrow_flight::HandshakeRequest::default()]);
    let answers = FlightServiceClient::new(channel).handshake(request).await?.into_inner();
    Ok(answers.try_collect::<Vec<_>>().await?.len())
}

#[tokio::test]
async fn a_handshake_is_completed_for_whoever_is_known_and_for_nobody_else() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    assert_eq!(shake_hands(server.channel(Some("reads-orders"))).await.unwrap(), 0);
    let stranger = shake_hands(server.channel(Some("nobodys-token"))).await.unwrap_err();
    assert_refused(&stranger, Code::Unauthenticated, "TOKEN_UNKNOWN");
    let nameless = shake_hands(server.channel(None)).await.unwrap_err();
    assert_refused(&nameless, Code::Unauthenticated, "CREDENTIALS_MISSING");
}

#[tokio::test]
async fn a_server_that_asks_nobody_goes_on_without_credentials_and_says_that_it_takes_none() {
    let guard = Guard::open(GuardLimits::default(), Prefixes::default());
    let address = serve(guard, AcceptLimits::default()).await;
    let dial = |token: Option<&str>| {
        let token = token.map(|token| SecretSource::Fixed(Secret::new(token)));
        connect_with(&format!("http://{address}"), &Dial { token, ..Dial::default() }).unwrap()
    };
    assert_eq!(shake_hands(dial(None)).await.unwrap(), 0);
    let told = shake_hands(dial(Some("a-token"))).await.unwrap_err();
    assert_eq!(told.code(), Code::Unimplemented, "{told:?}");
    assert!(told.message().contains("leave out `token`") && !told.message().contains("a-token"), "{told:?}");
}
