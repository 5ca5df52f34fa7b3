// SPDX-License-Identifier: Apache-2.0
//! `tributary` as processes of their own.
//!
//! The processes are this test binary itself, started again with one test and the command line in the environment: so
//! no other binary has to be built or found.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tributary_server::{cli, config};

const ARGUMENTS: &str = "TRIBUTARY_TEST_ARGUMENTS";
/// What comes before it is the test harness's.
const BEGIN: &str = "---- tributary begins";

/// Does nothing in a normal run; in a child process it is the process.
#[test]
fn child_process() {
    if let Ok(arguments) = std::env::var(ARGUMENTS) {
        println!("\n{BEGIN}");
        let code = cli::main(config::parse_or_exit(arguments.split('\u{1f}').map(Into::into)));
        let code = (0..=u8::MAX).find(|number| format!("{:?}", ExitCode::from(*number)) == format!("{code:?}"));
        std::process::exit(code.unwrap().into());
    }
}

/// The command that runs `tributary` with these arguments.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut all = vec!["tributary"];
    all.extend(arguments);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process::child_process", "--nocapture"]).env(ARGUMENTS, all.join("\u{1f}"));
    command
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end.
pub(crate) fn ended(mut command: Command) -> Ended {
    let output = command.stdin(Stdio::null()).output().unwrap();
    Ended {
        code: output.status.code().unwrap(),
        stdout: own_output(&String::from_utf8_lossy(&output.stdout)),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs `tributary` to its end.
pub(crate) fn tributary(arguments: &[&str]) -> Ended {
    ended(command(arguments))
}

/// A process's standard output without what the test harness wrote before it.
pub(crate) fn own_output(text: &str) -> String {
    text.split_once(&format!("{BEGIN}\n")).map_or(String::new(), |(_, own)| own.to_string())
}

/// A server; killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) url: String,
    /// Where probes are served, if they are.
    pub(crate) http: Option<String>,
}

impl Process {
    pub(crate) fn start(arguments: &[&str]) -> Process {
        Process::start_at("127.0.0.1:0", arguments)
    }

    pub(crate) fn start_at(address: &str, arguments: &[&str]) -> Process {
        let mut all = vec!["serve", "--listen", address];
        all.extend(arguments);
        let mut child = command(&all).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut find = |what: &str| lines.find_map(|line| line.strip_prefix(what).map(str::to_string)).unwrap();
        let url = format!("http://{}", find("listening on "));
        let http = arguments.contains(&"--http-listen").then(|| find("http on "));
        Process { child, url, http }
    }

    /// `HOST:PORT` of its port.
    pub(crate) fn address(&self) -> String {
        self.url.trim_start_matches("http://").to_string()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn terminate(&mut self) -> Duration {
        let began = Instant::now();
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        self.child.wait().unwrap();
        began.elapsed()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
