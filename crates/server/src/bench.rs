// SPDX-License-Identifier: Apache-2.0
//! `tributary bench` and the tables it runs on.

pub mod source;
