// SPDX-License-Identifier: Apache-2.0
//! `tributary bench`: measured ratios.

use std::path::Path;
use std::sync::Arc;

use tributary_hudi::Stores;

use crate::bench::latency::{self, Latency};
use crate::bench::planning::{self, Planning};
use crate::bench::{self, Plan, Ratio};
use crate::cli::{BenchArgs, Output};
use crate::commands::{Failed, roles};
use crate::output;

/// Batches of each pipeline whose times are measured.
const ROUNDS: usize = 3;
const LARGEST_GIANT: usize = 200_000;

/// Runs the command; answers the exit code: 1 when a ratio or its memory is over its bound.
pub async fn bench(args: BenchArgs, stores: Arc<dyn Stores>) -> Result<u8, Failed> {
    let fail = |message: String| Failed { message, exit_code: 1 };
    let directory = match &args.dir {
        Some(directory) => directory.clone(),
        None => std::env::temp_dir().join(format!("tributary-bench-{}", std::process::id())),
    };
    std::fs::create_dir_all(&directory).map_err(|e| fail(format!("`{}`: {e}", directory.display())))?;
    if args.planning {
        let plan = Planning { instants: args.instants, files: args.files, runs: args.runs };
        let fresh = || roles(None, Arc::clone(&stores)).map_err(|failed| failed.message.into());
        let measured = planning::run(fresh, &directory, &plan).await.map_err(|e| fail(e.to_string()));
        return finish(&args, &directory, measured);
    }
    let roles = roles(None, stores)?;
    if args.latency {
        // A giant among small ones, not one that fills the machine.
        let plan = latency::Plan { pipelines: args.pipelines, rows: args.rows.min(LARGEST_GIANT), rounds: ROUNDS };
        let measured = latency::run(&roles, &directory, &plan).await.map_err(|e| fail(e.to_string()));
        remove(&args, &directory);
        print_latencies(&measured?, args.output);
        return Ok(0);
    }
    let parallelism = std::thread::available_parallelism().map_or(2, usize::from);
    let plan = Plan { rows: args.rows, runs: args.runs, parallelism };
    let measured = match args.pull {
        true => bench::pull::run(&roles, &directory, &plan).await.map(|ratio| vec![ratio]),
        false => bench::run(&roles, &directory, &plan).await,
    };
    let measured = measured.map_err(|e| fail(e.to_string()));
    finish(&args, &directory, measured)
}

fn finish(args: &BenchArgs, directory: &Path, measured: Result<Vec<Ratio>, Failed>) -> Result<u8, Failed> {
    remove(args, directory);
    let ratios = measured?;
    print(&ratios, args.output);
    let holds = if args.memory_only { Ratio::holds_memory } else { Ratio::holds };
    Ok(u8::from(!ratios.iter().all(holds)))
}

/// Removes a directory of our own making; what stays in it is only disk space.
fn remove(args: &BenchArgs, directory: &std::path::Path) {
    if args.dir.is_none() {
        let _ = std::fs::remove_dir_all(directory);
    }
}

fn print_latencies(latencies: &[Latency], output: Output) {
    for latency in latencies {
        let Latency { kind, batches, waited_millis: [w50, w95, w100], took_millis: [t50, t95, t100] } = latency;
        match output {
            Output::Json => output::print_json(latency),
            Output::Text => println!(
                "{kind:<7}  {batches} batches: waited {w50} ms (95 of 100 within {w95}, all within {w100}), took {t50} ms (95 \
                 of 100 within {t95}, all within {t100})"
            ),
        }
    }
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
