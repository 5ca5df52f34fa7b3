// SPDX-License-Identifier: Apache-2.0
//! Streams the rows of one partition's span.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use futures::StreamExt;
use tokio::time::{Instant, sleep};
use tributary_api::timeline::{Error, FileSplit, ReadRequest, TopicSplit};
use tributary_api::{RowError, RowStream, boxed_error};
use tributary_types::pipeline::BadRecords;

use crate::kafka::log::{Asked, Log, Message, Place};
use crate::kafka::rows::{Rows, Tombs};
use crate::metrics;
use crate::record::Tally;
use crate::refused::CleanSplits;

/// Answers without a message, one after the other, that show that nothing is left of a span: a broker sends the first batch
/// behind the offset that it is asked for, whatever its size. One that is busy with a distant store may send nothing.
const EMPTY_ANSWERS: u32 = 10;
/// Before a broker that holds answers back is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// Opens the stream of a span's rows.
pub(crate) fn read(
    log: Arc<dyn Log>,
    file: &FileSplit,
    split: &TopicSplit,
    request: ReadRequest,
    bytes: u64,
    clean: &Arc<CleanSplits>,
) -> Result<RowStream, Error> {
    let name = match file.format.bad_records() {
        Some(BadRecords::ErrorTable) => CleanSplits::name(&request),
        _ => None,
    };
    if file.refused && name.as_ref().is_none_or(|name| clean.has(name)) {
        return Ok(futures::stream::empty().boxed());
    }
    let place = Place { source: file.source.clone(), url: request.split.url.clone() };
    // Which messages are refused does not depend on the columns asked for.
    let projection = if file.refused { Some(Vec::new()) } else { request.projection };
    let mut rows =
        Rows::new(place.clone(), split, &file.format, file.strict, request.schema, projection, request.batch_rows)?;
    if file.refused {
        rows.keep_refused();
    }
    let reading = Reading {
        clean: name.filter(|_| !file.refused).map(|name| (name, Arc::clone(clean))),
        log,
        place,
        split: split.clone(),
        bytes: i32::try_from(bytes).unwrap_or(i32::MAX),
        rows,
        position: split.begin,
        pending: VecDeque::new(),
        told: Tally::default(),
        told_tombs: Tombs::default(),
    };
    let rows = futures::stream::try_unfold(reading, |mut reading| async move {
        match reading.next().await {
            Ok(Some(batch)) => Ok(Some((batch, reading))),
            Ok(None) => Ok(None),
            Err(error) => Err(RowError::new(error)),
        }
    });
    Ok(rows.boxed())
}

struct Reading {
    log: Arc<dyn Log>,
    place: Place,
    split: TopicSplit,
    /// Asked for at once.
    bytes: i32,
    rows: Rows,
    /// Everything before it came.
    position: i64,
    /// Messages that came and were not taken in.
    pending: VecDeque<Message>,
    /// What was counted before.
    told: Tally,
    told_tombs: Tombs,
    /// What the span is remembered by if no message of it is bad.
    clean: Option<(Arc<str>, Arc<CleanSplits>)>,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<RecordBatch>, Error> {
        loop {
            if self.rows.keeps_refused() {
                if let Some(batch) = self.next_refused().await? {
                    return Ok(Some(batch));
                }
                if self.pending.is_empty() && self.position >= self.split.end {
                    return self.rows.rest_of_refused();
                }
                continue;
            }
            let taken = self.take_pending();
            self.tell();
            taken?;
            let over = self.pending.is_empty() && self.position >= self.split.end;
            if self.rows.is_full() || (over && !self.rows.is_empty()) {
                let made = self.rows.make();
                self.tell();
                let batch = made?;
                if batch.num_rows() > 0 {
                    return Ok(Some(batch));
                }
            } else if over {
                if self.rows.tally().bad == 0
                    && let Some((name, clean)) = self.clean.take()
                {
                    clean.note(name);
                }
                return Ok(None);
            } else if self.pending.is_empty() {
                self.fetch().await?;
            }
        }
    }

    /// Goes on among messages of which only the refused ones are asked for. What becomes of them was counted before.
    async fn next_refused(&mut self) -> Result<Option<RecordBatch>, Error> {
        if self.pending.is_empty() && self.position < self.split.end {
            self.fetch().await?;
        }
        self.take_pending()?;
        let over = self.pending.is_empty() && self.position >= self.split.end;
        if !self.rows.is_empty() && (self.rows.is_full() || over) {
            self.rows.make()?;
        }
        self.rows.full_of_refused()
    }

    fn take_pending(&mut self) -> Result<(), Error> {
        while !self.rows.is_full()
            && let Some(message) = self.pending.pop_front()
        {
            self.rows.take(message)?;
        }
        Ok(())
    }

    /// Goes on in the partition: to the next messages, or to the end where there are none.
    async fn fetch(&mut self) -> Result<(), Error> {
        let until = Instant::now() + self.split.source.options.timeout.0;
        let mut empty = 0;
        loop {
            let (offset, end) = (self.position, self.split.end);
            let asked =
                Asked { topic_id: self.split.topic_id.as_deref(), partition: self.split.partition, offset, end };
            let fetched = self.log.fetch(&asked, self.bytes).await.map_err(|error| self.place.fault(error))?;
            if fetched.next > offset {
                self.position = fetched.next;
                self.pending.extend(fetched.messages);
                return Ok(());
            }
            // Behind its planned end it may be for a moment only, where another broker has just begun to lead it.
            let short = fetched.stable < end;
            if (short || fetched.throttled) && Instant::now() >= until {
                let what = format!("partition {} ends at {}, {end} was planned", self.split.partition, fetched.stable);
                return Err(match short {
                    true => self.place.recreated(what),
                    false => Error::Brokers {
                        url: self.place.url.clone(),
                        doing: format!("reading partition {} from offset {offset}", self.split.partition),
                        source: boxed_error(std::io::Error::other(
                            "the brokers hold answers back: too much is asked of them",
                        )),
                    },
                });
            }
            if short || fetched.throttled {
                sleep(PAUSE).await;
                continue;
            }
            empty += 1;
            if empty >= EMPTY_ANSWERS {
                tracing::debug!(partition = self.split.partition, offset, end, "nothing is left of a span");
                self.position = end;
                return Ok(());
            }
        }
    }

    /// Counts what became of messages since the last time.
    fn tell(&mut self) {
        let (tally, tombs) = (self.rows.tally(), self.rows.tombs);
        if tally != self.told {
            metrics::record_tally(self.place.source.as_str(), &tally.since(&self.told));
            self.told = tally;
        }
        if tombs != self.told_tombs {
            let deleted = tombs.deleted - self.told_tombs.deleted;
            metrics::record_tombstones(self.place.source.as_str(), deleted, tombs.ignored - self.told_tombs.ignored);
            self.told_tombs = tombs;
        }
    }
}
