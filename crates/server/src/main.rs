// SPDX-License-Identifier: Apache-2.0
//! The `tributary` binary: parses its arguments and hands over to the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    tributary_server::cli::main(tributary_server::config::parse_or_exit(std::env::args_os()))
}
