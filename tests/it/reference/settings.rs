// SPDX-License-Identifier: Apache-2.0
//! docs/configuration.md: settings of a process, and keys of a pipeline file.

use std::fmt::Write as _;

use tributary_server::config;

use super::{cell, compare, keys};

const HEAD: &str = "# Configuration\n\nGenerated from the code; `make docs` writes it.\n\n## Settings of a process\n\nEvery flag of \
                    `serve` and every flag that all commands have can be set in a file and in the environment as well. \
                    What goes before what, from weak to strong:\n\n1. what is compiled in\n2. the file of `--config FILE` \
                    or `TRIBUTARY_CONFIG`, in TOML\n3. `TRIBUTARY__SECTION__KEY`, such as \
                    `TRIBUTARY__SERVE__MAX_BATCHES=8`\n4. a flag's own variable, where it has one\n5. the flag\n\nA key that \
                    is not known is refused with the nearest one, and all problems of file and environment are told \
                    together. A list in the environment is written with commas. `tributary serve --print-config` prints \
                    the settings that would be used, each with its origin, as a file that could be used again; secrets \
                    are not shown. Relative paths are relative to where the process was started.\n\n```toml\n[common]\n\
                    log_json = true\n\n[serve]\nlisten = \"127.0.0.1:7373\"\nhttp_listen = \"127.0.0.1:7374\"\ndata_dir = \
                    \"/var/lib/tributary\"\nmax_batches = 8\n```\n";

fn settings(text: &mut String) {
    let mut section = "";
    for key in config::keys() {
        if key.section != section {
            section = key.section;
            writeln!(text, "\n### [{section}]\n\n| key | default | flag, own variable | meaning |\n|---|---|---|---|")
                .unwrap();
        }
        let default = match key.default.as_str() {
            "" => "none".to_string(),
            _ if key.many => {
                let values: Vec<String> = key.default.split(", ").map(|value| format!("\"{value}\"")).collect();
                format!("`[{}]`", values.join(", "))
            }
            value => format!("`{value}`"),
        };
        let variable = key.variable.map_or(String::new(), |name| format!(", `{name}`"));
        let help = cell(&key.help);
        writeln!(text, "| `{}` | {default} | `{}`{variable} | {help} |", key.name, key.flag).unwrap();
    }
}

#[test]
fn the_reference_of_settings_and_pipeline_keys_is_what_the_code_says() {
    let mut text = HEAD.to_string();
    settings(&mut text);
    keys::write(&mut text);
    compare("docs/configuration.md", &text);
}
