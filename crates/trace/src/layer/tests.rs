// SPDX-License-Identifier: Apache-2.0

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::{info_span, subscriber};
use tracing_subscriber::layer::SubscriberExt;

use super::*;

#[derive(Default)]
struct Kept(Mutex<Vec<FinishedSpan>>);

impl Sink for Kept {
    fn accept(&self, span: FinishedSpan) {
        self.0.lock().unwrap().push(span);
    }
}

impl Kept {
    fn named(&self, name: &str) -> FinishedSpan {
        self.0.lock().unwrap().iter().find(|span| span.name == name).cloned().unwrap()
    }
}

struct Noon;

impl Clock for Noon {
    fn now_millis(&self) -> i64 {
        1_000
    }
}

#[derive(Default)]
struct Counting(AtomicU64);

impl Entropy for Counting {
    fn next_u128(&self) -> u128 {
        u128::from(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

fn traced(sampling: Sampling, work: impl FnOnce()) -> Arc<Kept> {
    let kept = Arc::new(Kept::default());
    let traces = Traces::new(Arc::new(Noon), Arc::new(Counting::default()), sampling, Some(Arc::clone(&kept) as _));
    subscriber::with_default(Registry::default().with(traces), work);
    kept
}

#[test]
fn a_span_within_another_is_below_it_in_the_same_trace() {
    let kept = traced(Sampling::All, || {
        let outer = info_span!("outer", pipeline = "p", rows = tracing::field::Empty);
        outer.in_scope(|| info_span!("inner", otel.kind = "client", otel.name = "calling").in_scope(|| {}));
        outer.record("rows", 7u64);
    });
    let (outer, inner) = (kept.named("outer"), kept.named("calling"));
    assert_eq!((outer.parent, inner.parent), (None, Some(outer.context.span)));
    assert_eq!(outer.context.trace, inner.context.trace);
    assert_ne!(outer.context.span, inner.context.span);
    assert_eq!((outer.kind, inner.kind), (Kind::Internal, Kind::Client));
    assert_eq!(outer.attributes, [("pipeline", Value::Text("p".to_string())), ("rows", Value::Int(7))]);
    assert!(inner.attributes.is_empty(), "what says something of the span itself is no attribute: {inner:?}");
    assert!(outer.start_nanos == 1_000_000_000 && outer.start_nanos <= inner.start_nanos);
    assert!(inner.end_nanos <= outer.end_nanos);
}

#[test]
fn a_joined_span_is_below_that_of_the_other_process_and_carries_its_batch_on() {
    let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let parent = TraceContext::parse(header).unwrap();
    let baggage = Baggage { batch: Some("p/r".to_string()), ..Baggage::default() };
    let kept = traced(Sampling::Nothing, || {
        let call = info_span!("call");
        join(&call, Some(parent), &baggage);
        call.in_scope(|| {
            let (here, batch) = current().unwrap();
            assert_eq!((here.trace, here.sampled), (parent.trace, true));
            assert_ne!(here.span, parent.span);
            assert_eq!(batch, baggage);
            info_span!("work", batch = "p/inner").in_scope(|| {
                assert_eq!(current().unwrap().1.batch.as_deref(), Some("p/inner"), "the innermost counts");
            });
        });
    });
    let (call, work) = (kept.named("call"), kept.named("work"));
    assert_eq!(call.parent, Some(parent.span));
    assert_eq!((work.context.trace, work.parent), (parent.trace, Some(call.context.span)));
}

#[test]
fn a_trace_that_is_not_kept_goes_nowhere_and_is_carried_on_as_such() {
    let kept = traced(Sampling::Nothing, || {
        info_span!("outer").in_scope(|| {
            assert!(!current().unwrap().0.sampled);
            info_span!("inner").in_scope(|| {});
        });
    });
    assert!(kept.0.lock().unwrap().is_empty());
    assert_eq!(current(), None, "nothing makes traces here");
}

#[test]
fn a_part_of_the_traces_is_chosen_by_id() {
    let kept = |part: f64, bits: u128| Sampling::Ratio(part).keeps(TraceId::new(bits).unwrap());
    let half = 1u128 << 55;
    assert!(kept(0.5, half - 1) && !kept(0.5, half));
    assert!(kept(1.0, (1 << 56) - 1) && !kept(0.0, 1));
    assert_eq!(kept(0.5, half - 1), kept(0.5, (half - 1) | (0xff << 56)), "other bits do not count");
}

#[test]
fn what_is_logged_within_is_kept_up_to_a_bound_and_an_error_fails_the_span() {
    let kept = traced(Sampling::All, || {
        info_span!("work").in_scope(|| {
            for number in 0..40 {
                tracing::warn!(number, "again");
            }
            tracing::error!("it broke");
        });
        info_span!("told", error = tracing::field::Empty).in_scope(|| {
            tracing::Span::current().record("error", "no disk");
        });
    });
    let work = kept.named("work");
    assert_eq!((work.events.len(), work.dropped_events), (MOST_EVENTS, 9));
    assert_eq!(work.events[0].name, "again");
    assert_eq!(work.events[1].attributes[0], ("number", Value::Int(1)));
    assert_eq!(work.error.as_deref(), Some("it broke"));
    assert_eq!(kept.named("told").error.as_deref(), Some("no disk"));
}
