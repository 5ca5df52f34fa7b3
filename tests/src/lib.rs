// SPDX-License-Identifier: Apache-2.0
//! Integration tests live in `it/`; this library is empty.
