// SPDX-License-Identifier: Apache-2.0
//! Standard error with progress bars on it: whatever else is written there first takes the bars away, and puts them back
//! below it, so that neither cuts the other.

use std::io::{self, Write};
use std::sync::LazyLock;

use indicatif::{MultiProgress, ProgressBar};
use tracing_subscriber::fmt::MakeWriter;

/// All bars of the process: they share its standard error.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Shows a bar below what is written to standard error from now on.
pub(crate) fn add(bar: ProgressBar) -> ProgressBar {
    BARS.add(bar)
}

/// Writes a line to standard error.
pub(crate) fn say(line: &str) {
    BARS.suspend(|| eprintln!("{line}"));
}

/// Where log lines go.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StandardError;

impl<'a> MakeWriter<'a> for StandardError {
    type Writer = AboveBars<io::Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        AboveBars { bars: BARS.clone(), out: io::stderr() }
    }
}

/// Writes above the bars. Each call must write whole lines, as one of a log does.
pub(crate) struct AboveBars<W> {
    bars: MultiProgress,
    out: W,
}

impl<W: Write> Write for AboveBars<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let out = &mut self.out;
        self.bars.suspend(|| out.write_all(bytes).and_then(|()| out.flush()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use indicatif::{ProgressDrawTarget, ProgressStyle, TermLike};

    use super::*;

    /// A terminal: what is on its lines, and where the cursor is.
    #[derive(Debug, Default)]
    struct Lines {
        text: Vec<String>,
        line: usize,
        column: usize,
    }

    #[derive(Debug, Clone, Default)]
    struct Screen(Arc<Mutex<Lines>>);

    impl Screen {
        fn put(&self, text: &str) {
            let mut lines = self.0.lock().unwrap();
            let lines = &mut *lines;
            for letter in text.chars() {
                if lines.text.len() <= lines.line {
                    lines.text.resize(lines.line + 1, String::new());
                }
                match letter {
                    '\n' => (lines.line, lines.column) = (lines.line + 1, 0),
                    '\r' => lines.column = 0,
                    letter => {
                        let mut letters: Vec<char> = lines.text[lines.line].chars().collect();
                        letters.resize(letters.len().max(lines.column + 1), ' ');
                        letters[lines.column] = letter;
                        lines.text[lines.line] = letters.into_iter().collect();
                        lines.column += 1;
                    }
                }
            }
        }

        fn shown(&self) -> Vec<String> {
            let lines = self.0.lock().unwrap();
            lines.text.iter().map(|line| line.trim_end().to_string()).filter(|line| !line.is_empty()).collect()
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            200
        }

        fn move_cursor_up(&self, n: usize) -> io::Result<()> {
            let mut lines = self.0.lock().unwrap();
            lines.line = lines.line.saturating_sub(n);
            Ok(())
        }

        fn move_cursor_down(&self, n: usize) -> io::Result<()> {
            self.0.lock().unwrap().line += n;
            Ok(())
        }

        fn move_cursor_right(&self, n: usize) -> io::Result<()> {
            self.0.lock().unwrap().column += n;
            Ok(())
        }

        fn move_cursor_left(&self, n: usize) -> io::Result<()> {
            let mut lines = self.0.lock().unwrap();
            lines.column = lines.column.saturating_sub(n);
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.put(&format!("{text}\n"));
            Ok(())
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.put(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            let mut lines = self.0.lock().unwrap();
            let at = lines.line;
            if let Some(line) = lines.text.get_mut(at) {
                line.clear();
            }
            lines.column = 0;
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.put(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is on a screen after lines are written while a bar is drawn, through what `writer` makes.
    fn screen_after<W: Write>(writer: impl Fn(&MultiProgress, &Screen) -> W) -> Vec<String> {
        let screen = Screen::default();
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::term_like(Box::new(screen.clone())));
        let bar = bars.add(ProgressBar::new(7));
        bar.set_style(ProgressStyle::with_template("[{pos}] {msg}").unwrap());
        let mut out = writer(&bars, &screen);
        for step in 1..=3u64 {
            bar.set_position(step);
            bar.set_message(format!("stage {step}"));
            bar.tick();
            out.write_all(format!("line {step}\n").as_bytes()).unwrap();
        }
        bar.tick();
        screen.shown()
    }

    #[test]
    fn a_log_line_is_whole_above_the_bar_and_the_bar_is_there_once() {
        let shown = screen_after(|bars, screen| AboveBars { bars: bars.clone(), out: screen.clone() });
        assert_eq!(shown, ["line 1", "line 2", "line 3", "[3] stage 3"]);
    }

    #[test]
    fn without_taking_the_bar_away_a_line_would_be_cut_into_it() {
        let shown = screen_after(|_, screen| screen.clone());
        assert_ne!(shown, ["line 1", "line 2", "line 3", "[3] stage 3"], "or the test above shows nothing");
    }
}
