// SPDX-License-Identifier: Apache-2.0
//! What every client adapter needs: the other side's address in its messages, and errors of its role.

use std::marker::PhantomData;

use tonic::Status;
use tributary_types::{Code, Retry};

use crate::convert::Malformed;
use crate::fault::{Call, RoleError, from_status};

/// The other side of a client adapter whose errors are `E`.
pub(crate) struct Remote<E> {
    address: String,
    error: PhantomData<fn() -> E>,
}

impl<E> Clone for Remote<E> {
    fn clone(&self) -> Self {
        Remote { address: self.address.clone(), error: PhantomData }
    }
}

impl<E: RoleError> Remote<E> {
    pub(crate) fn new(address: impl Into<String>) -> Self {
        Remote { address: address.into(), error: PhantomData }
    }

    /// What is being attempted, and where.
    pub(crate) fn at(&self, doing: &str) -> String {
        format!("{doing} at {}", self.address)
    }

    /// The error of a call that can simply be sent again.
    pub(crate) fn failed(&self, doing: &str) -> impl Fn(Status) -> E + use<E> {
        let doing = self.at(doing);
        move |status| from_status(status, doing.clone(), Call::Repeatable)
    }

    /// The error of a call that may have changed something.
    pub(crate) fn failed_write(&self, doing: &str) -> impl Fn(Status) -> E + use<E> {
        let doing = self.at(doing);
        move |status| from_status(status, doing.clone(), Call::Write)
    }

    /// The error of an answer that cannot be read.
    pub(crate) fn unreadable(&self, doing: &str) -> impl Fn(Malformed) -> E + use<E> {
        let doing = self.at(doing);
        move |what| {
            let message = format!("{doing}: the answer is of another version of Tributary: {what}");
            E::other(Code::Internal, Retry::Never, message)
        }
    }
}
