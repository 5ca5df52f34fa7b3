// SPDX-License-Identifier: Apache-2.0
//! Resident memory of a batch: of a process of its own, since this one holds what made the tables.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tributary_types::pipeline::Pipeline;

use super::source::BuildError;

/// Between two looks at the process. The kernel keeps the peak, so only what is taken in the last moment can be missed.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Runs one batch with `tributary run` and answers the most bytes that were ever resident; `None` where the system does
/// not say.
pub(super) async fn resident_peak(pipeline: &Pipeline, directory: &Path) -> Result<Option<u64>, BuildError> {
    let file = directory.join("pipeline.toml");
    std::fs::write(&file, toml::to_string(pipeline)?)?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("run")
        .arg("--pipeline")
        .arg(&file)
        .env_remove("TRIBUTARY_DATA_DIR")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let status = child.id().map(|id| format!("/proc/{id}/status"));
    let mut peak = None;
    loop {
        let told = status.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        peak = told.as_deref().and_then(high_water_mark).or(peak);
        if let Ok(ended) = tokio::time::timeout(LOOK_EVERY, child.wait()).await {
            let ended = ended?;
            return if ended.success() { Ok(peak) } else { Err(format!("`tributary run` ended with {ended}").into()) };
        }
    }
}

/// Bytes of the line `VmHWM: 1234 kB`.
fn high_water_mark(status: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_read_in_bytes() {
        assert_eq!(high_water_mark("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"), Some(2 << 20));
        assert_eq!(high_water_mark("Name:\tx\n"), None, "a zombie has no memory");
    }
}
