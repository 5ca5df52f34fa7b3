// SPDX-License-Identifier: Apache-2.0
//! The bytes of one file, part by part, as long as it is the one that was planned.

use std::ops::Range;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use tributary_api::timeline::Error;
use tributary_hudi::{Entry, Storage};

use crate::fault::fault;

/// Parts that are on their way at once: the next one comes while one is decoded.
const PARTS_AHEAD: usize = 2;

/// A file as it was planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pinned {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) modified_millis: i64,
    pub(crate) e_tag: Option<String>,
}

impl Pinned {
    /// What differs from what is there now.
    pub(crate) fn difference(&self, now: &Entry) -> Option<String> {
        if now.bytes != self.bytes {
            return Some(format!("it had {} bytes and has {}", self.bytes, now.bytes));
        }
        match (&self.e_tag, &now.e_tag) {
            (Some(planned), Some(now)) if planned != now => {
                Some(format!("the store called its content {planned} and calls it {now}"))
            }
            (Some(_), Some(_)) => None,
            _ if self.modified_millis != now.modified_millis => {
                Some(format!("it was modified at {} ms and at {} ms", self.modified_millis, now.modified_millis))
            }
            _ => None,
        }
    }
}

/// The file's bytes. Each part is read from the very content that was planned, or the stream ends with an error that
/// says what changed.
pub(crate) fn parts(storage: &Storage, file: Pinned, part_bytes: u64) -> BoxStream<'static, Result<Bytes, Error>> {
    let storage = storage.clone();
    let total = file.bytes;
    let starts = (0..total.div_ceil(part_bytes)).map(move |number| number * part_bytes);
    let reads = starts.map(move |start| {
        let (storage, file) = (storage.clone(), file.clone());
        async move { part(&storage, &file, start..(start + part_bytes).min(total)).await }
    });
    futures::stream::iter(reads).buffered(PARTS_AHEAD).boxed()
}

async fn part(storage: &Storage, file: &Pinned, range: Range<u64>) -> Result<Bytes, Error> {
    let url = storage.url();
    let expected = range.end - range.start;
    let gone = || Error::FileGone { url: url.to_string(), file: file.path.clone() };
    let changed = |detail: String| Error::FileChanged { url: url.to_string(), file: file.path.clone(), detail };
    match storage.get_part(&file.path, range).await {
        Ok(None) => Err(gone()),
        Ok(Some((bytes, entry))) => match file.difference(&entry) {
            Some(detail) => Err(changed(detail)),
            None if bytes.len() as u64 != expected => Err(changed("its end is missing".to_string())),
            None => Ok(bytes),
        },
        Err(error) => {
            // A store says in its own words that a part is not there any more.
            match storage.head(&file.path).await {
                Ok(None) => Err(gone()),
                Ok(Some(entry)) => match file.difference(&entry) {
                    Some(detail) => Err(changed(detail)),
                    None => Err(fault(url)(error)),
                },
                Err(_) => Err(fault(url)(error)),
            }
        }
    }
}

/// Fails where the file is not the one that was planned.
pub(crate) async fn check(storage: &Storage, file: &Pinned) -> Result<(), Error> {
    let url = storage.url().to_string();
    match storage.head(&file.path).await.map_err(fault(storage.url()))? {
        None => Err(Error::FileGone { url, file: file.path.clone() }),
        Some(entry) => match file.difference(&entry) {
            Some(detail) => Err(Error::FileChanged { url, file: file.path.clone(), detail }),
            None => Ok(()),
        },
    }
}
