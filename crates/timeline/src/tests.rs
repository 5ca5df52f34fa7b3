// SPDX-License-Identifier: Apache-2.0
//! Real tables, written by Spark.
