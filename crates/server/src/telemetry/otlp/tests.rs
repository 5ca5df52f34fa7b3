// SPDX-License-Identifier: Apache-2.0

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tributary_trace::{Kind, SpanId, TraceContext, TraceId};

use super::*;

fn span(number: u64) -> FinishedSpan {
    let (trace, span) = (TraceId::new(1).unwrap(), SpanId::new(number).unwrap());
    FinishedSpan {
        context: TraceContext { trace, span, sampled: true },
        parent: None,
        name: "work".to_string(),
        kind: Kind::Internal,
        start_nanos: 1,
        end_nanos: 2,
        attributes: Vec::new(),
        events: Vec::new(),
        dropped_events: 0,
        error: None,
    }
}

/// Answers as it was told, then takes everything; keeps what it took.
#[derive(Default)]
struct Told {
    answers: Mutex<VecDeque<Result<u64, bool>>>,
    taken: Mutex<Vec<FinishedSpan>>,
    asked: watch::Sender<usize>,
}

#[async_trait]
impl Collects for Arc<Told> {
    async fn export(&self, spans: &[FinishedSpan]) -> Result<u64, ExportError> {
        self.asked.send_modify(|asked| *asked += 1);
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or(Ok(0));
        match answer {
            Ok(refused) => {
                self.taken.lock().unwrap().extend_from_slice(spans);
                Ok(refused)
            }
            Err(again) => Err(ExportError { message: "told so".to_string(), again }),
        }
    }
}

/// Never answers.
struct Silent;

#[async_trait]
impl Collects for Silent {
    async fn export(&self, _: &[FinishedSpan]) -> Result<u64, ExportError> {
        std::future::pending().await
    }
}

/// Runs `work` with time that passes by itself, and metrics of its own.
fn with_metrics(work: impl Future<Output = ()>) -> PrometheusHandle {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(work));
    handle
}

fn counted(handle: &PrometheusHandle, series: &str) -> u64 {
    let text = handle.render();
    let line = text.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("{series}: {text}"));
    line.trim().parse().unwrap()
}

const EXPORTED_SERIES: &str = "tributary_traces_exported_spans_total ";
const QUEUE_SERIES: &str = "tributary_traces_dropped_spans_total{why=\"queue\"} ";
const COLLECTOR_SERIES: &str = "tributary_traces_dropped_spans_total{why=\"collector\"} ";

#[test]
fn a_collector_that_never_answers_holds_nobody_up_and_what_finds_no_room_is_counted() {
    let handle = with_metrics(async {
        let (queue, exporter) = Exporter::start_with(Silent, 10, Duration::from_secs(1));
        for number in 1..=25 {
            queue.accept(span(number));
        }
        // It has what was there by then, and asks for ever.
        tokio::time::sleep(Duration::from_secs(60)).await;
        for number in 1..=25 {
            queue.accept(span(number));
        }
        exporter.finish(Duration::from_secs(2)).await;
    });
    assert_eq!(counted(&handle, QUEUE_SERIES), 30);
    assert_eq!(counted(&handle, EXPORTED_SERIES), 0);
}

#[test]
fn a_collector_that_fails_is_asked_again_and_then_given_up() {
    let told = Arc::new(Told::default());
    told.answers.lock().unwrap().extend([Err(true), Err(true), Ok(1)]);
    let handle = with_metrics(async {
        let (queue, exporter) = Exporter::start_with(Arc::clone(&told), 10, Duration::from_secs(1));
        (1..=3).for_each(|number| queue.accept(span(number)));
        told.asked.subscribe().wait_for(|asked| *asked == 3).await.unwrap();
        // The next ones it never takes: not after some tries, and not at once where trying is of no use.
        told.answers.lock().unwrap().extend([Err(true), Err(true), Err(true), Err(true), Err(false)]);
        queue.accept(span(4));
        told.asked.subscribe().wait_for(|asked| *asked == 7).await.unwrap();
        queue.accept(span(5));
        told.asked.subscribe().wait_for(|asked| *asked == 8).await.unwrap();
        exporter.finish(Duration::from_secs(2)).await;
    });
    assert_eq!(told.taken.lock().unwrap().len(), 3);
    assert_eq!((counted(&handle, EXPORTED_SERIES), counted(&handle, COLLECTOR_SERIES)), (2, 3));
}

#[test]
fn what_is_left_at_the_end_is_sent() {
    let told = Arc::new(Told::default());
    let handle = with_metrics(async {
        let (queue, exporter) = Exporter::start_with(Arc::clone(&told), 2000, Duration::from_secs(3600));
        (1..=1500).for_each(|number| queue.accept(span(number)));
        exporter.finish(Duration::from_secs(2)).await;
        // Nobody sends it any more.
        queue.accept(span(1501));
    });
    assert_eq!(told.taken.lock().unwrap().len(), 1500);
    assert_eq!((counted(&handle, EXPORTED_SERIES), counted(&handle, QUEUE_SERIES)), (1500, 1));
}
