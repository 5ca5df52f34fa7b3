// SPDX-License-Identifier: Apache-2.0
//! `tributary bench`: measured ratios.

use std::sync::Arc;

use tributary_hudi::Stores;

use crate::bench::{self, Plan, Ratio};
use crate::cli::{BenchArgs, Output};
use crate::commands::{Failed, roles};
use crate::output;

/// Runs the command; answers the exit code: 1 when a ratio or its memory is over its bound.
pub async fn bench(args: BenchArgs, stores: Arc<dyn Stores>) -> Result<u8, Failed> {
    let roles = roles(None, stores)?;
    let fail = |message: String| Failed { message, exit_code: 1 };
    let directory = match &args.dir {
        Some(directory) => directory.clone(),
        None => std::env::temp_dir().join(format!("tributary-bench-{}", std::process::id())),
    };
    std::fs::create_dir_all(&directory).map_err(|e| fail(format!("`{}`: {e}", directory.display())))?;
    let parallelism = std::thread::available_parallelism().map_or(2, usize::from);
    let plan = Plan { rows: args.rows, runs: args.runs, parallelism };
    let measured = match args.pull {
        true => bench::pull::run(&roles, &directory, &plan).await.map(|ratio| vec![ratio]),
        false => bench::run(&roles, &directory, &plan).await,
    };
    let measured = measured.map_err(|e| fail(e.to_string()));
    if args.dir.is_none() {
        // A directory of our own making; what stays in it is only disk space.
        let _ = std::fs::remove_dir_all(&directory);
    }
    let ratios = measured?;
    print(&ratios, args.output);
    let holds = if args.memory_only { Ratio::holds_memory } else { Ratio::holds };
    Ok(u8::from(!ratios.iter().all(holds)))
}

fn print(ratios: &[Ratio], output: Output) {
    for ratio in ratios {
        match output {
            Output::Json => output::print_json(ratio),
            Output::Text => println!(
                "{} ÷ {}: {:.2} (bound {:.1}; pairs {:?}; ours {:?} ms, theirs {:?} ms; counted memory {} MiB, resident {})",
                ratio.name,
                ratio.against,
                ratio.median(),
                ratio.bound,
                ratio.ratios.iter().map(|r| (r * 100.0).round() / 100.0).collect::<Vec<_>>(),
                ratio.ours_millis,
                ratio.theirs_millis,
                ratio.peak_memory >> 20,
                ratio.resident_memory.map_or("not measured".to_string(), |bytes| format!("{} MiB", bytes >> 20)),
            ),
        }
    }
    if cfg!(debug_assertions) {
        eprintln!("note: this is an unoptimised build; its ratios say little");
    }
}
