// SPDX-License-Identifier: Apache-2.0

mod chains;
mod correlated;
mod deletes;
mod limits;
mod origins;
mod planning;
mod reading;
mod sandbox;
mod sql;
