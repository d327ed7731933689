//! Data on stdout: rows of a table for people, or JSON, one object a line.
//!
//! Rows go out as they come, in pieces, so a listing of any length takes little memory and its beginning is seen at
//! once. Nothing is coloured. What stands in a table may have been written by anyone, so nothing of it moves a cursor.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use comfy_table::{ColumnConstraint, ContentArrangement, Width};
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use super::failure::Failure;

/// How data is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Table,
    Json,
}

/// Standard output.
pub struct Out {
    pub format: Format,
    to: BufWriter<Stdout>,
    terminal: bool,
}

impl Out {
    pub fn new(format: Format) -> Out {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Out { format, to: BufWriter::with_capacity(1 << 16, stdout), terminal }
    }

    pub fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    pub fn line(&mut self, line: impl std::fmt::Display) -> Result<(), Failure> {
        writeln!(self.to, "{line}").map_err(Failure::Output)
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.to.write_all(bytes).map_err(Failure::Output)
    }

    pub fn json(&mut self, row: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.to, row).map_err(|error| Failure::Output(error.into()))?;
        self.to.write_all(b"\n").map_err(Failure::Output)
    }

    /// Makes what was written be seen. To be called at the end of every command: only then is an error noticed.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.to.flush().map_err(Failure::Output)
    }
}

/// So many rows are laid out together: enough for good widths, few enough to be seen soon.
const TOGETHER: usize = 500;
/// Between two columns.
const GAP: u16 = 2;

/// What a table gives up on a terminal that is too narrow for it: a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUp {
    /// It is broken into lines, between words.
    OneLine(&'static str),
    /// It is left out.
    All(&'static str),
}

/// A table that is written piece by piece, one line for each row unless a terminal is too narrow for it.
pub struct Table {
    header: Vec<&'static str>,
    /// In this order, until it fits.
    give_up: &'static [GiveUp],
    rows: Vec<Vec<String>>,
    /// Decided by the first piece.
    layout: Option<Layout>,
}

impl Table {
    pub fn new(header: &[&'static str], give_up: &'static [GiveUp]) -> Table {
        Table { header: header.to_vec(), give_up, rows: Vec::new(), layout: None }
    }

    /// Whether there is no row that was not written yet.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn row(&mut self, out: &mut Out, cells: Vec<String>) -> Result<(), Failure> {
        self.rows.push(cells.into_iter().map(|cell| harmless(&cell)).collect());
        match self.rows.len() >= TOGETHER {
            true => self.write(out),
            false => Ok(()),
        }
    }

    /// The end of a listing: writes what is left, with the header even when there is no row at all. Where rows went out
    /// as JSON there is only that to be flushed.
    pub fn end(mut self, out: &mut Out) -> Result<(), Failure> {
        match out.is_json() || (self.rows.is_empty() && self.layout.is_some()) {
            true => out.flush(),
            false => self.write(out),
        }
    }

    fn write(&mut self, out: &mut Out) -> Result<(), Failure> {
        let rows = std::mem::take(&mut self.rows);
        let header: Vec<String> = self.header.iter().map(|name| (*name).to_owned()).collect();
        let is_first = self.layout.is_none();
        let layout = match &mut self.layout {
            Some(layout) => layout,
            // Nobody looks at the width of a file, and a row that is one line can be searched for.
            none => none.insert(Layout {
                terminal: out.terminal.then(|| comfy_table::Table::new().width()).flatten(),
                columns: vec![Column::default(); header.len()],
            }),
        };
        layout.measure(rows.iter().chain([&header]));
        if is_first {
            layout.fit(&self.header, self.give_up);
        }
        let mut table = layout.table();
        if is_first {
            table.set_header(layout.shown(header));
        }
        table.add_rows(rows.into_iter().map(|row| layout.shown(row)));
        layout.constrain(&mut table);
        for line in table.lines() {
            out.line(line.trim_end())?;
        }
        out.flush()
    }
}

/// How wide the columns are, of which some may be broken or left out.
struct Layout {
    terminal: Option<u16>,
    columns: Vec<Column>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Column {
    /// Of all pieces so far, so that columns stay where they are.
    widest_cell: usize,
    widest_word: usize,
    breaks: bool,
    is_out: bool,
}

impl Layout {
    fn measure<'r>(&mut self, rows: impl Iterator<Item = &'r Vec<String>>) {
        for row in rows {
            for (column, cell) in self.columns.iter_mut().zip(row) {
                let word = cell.split(' ').map(UnicodeWidthStr::width).max().unwrap_or_default();
                column.widest_cell = column.widest_cell.max(cell.width());
                column.widest_word = column.widest_word.max(word);
            }
        }
    }

    /// Gives up as little as it can. What does not fit even so is left to the terminal to break.
    fn fit(&mut self, header: &[&str], give_up: &[GiveUp]) {
        for step in give_up {
            if self.fits() {
                return;
            }
            let (GiveUp::OneLine(name) | GiveUp::All(name)) = step;
            let index = header.iter().position(|known| known == name).expect("it is one of the columns");
            match step {
                GiveUp::OneLine(_) => self.columns[index].breaks = true,
                GiveUp::All(_) => self.columns[index].is_out = true,
            }
        }
    }

    fn fits(&self) -> bool {
        let shown = self.columns.iter().filter(|column| !column.is_out);
        let widths = shown.map(|column| if column.breaks { column.widest_word } else { column.widest_cell });
        let needed: usize = widths.map(|width| width + usize::from(GAP)).sum();
        self.terminal.is_none_or(|terminal| needed <= usize::from(terminal) + usize::from(GAP))
    }

    fn table(&self) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        match self.terminal.is_some() && self.fits() {
            true => table.set_content_arrangement(ContentArrangement::Dynamic),
            false => table.force_no_tty().set_content_arrangement(ContentArrangement::Disabled),
        };
        table
    }

    fn shown(&self, cells: Vec<String>) -> Vec<String> {
        let cells = cells.into_iter().zip(&self.columns);
        cells.filter(|(_, column)| !column.is_out).map(|(cell, _)| cell).collect()
    }

    fn constrain(&self, table: &mut comfy_table::Table) {
        let shown: Vec<_> = self.columns.iter().filter(|column| !column.is_out).collect();
        let last = shown.len() - 1;
        for (index, column) in table.column_iter_mut().enumerate() {
            let padding = if index == last { 0 } else { GAP };
            column.set_padding((0, padding));
            let width = |content: usize| {
                Width::Fixed(u16::try_from(content).unwrap_or(u16::MAX).saturating_add(padding))
            };
            column.set_constraint(match shown[index] {
                Column { breaks: true, widest_word, .. } => {
                    ColumnConstraint::LowerBoundary(width(*widest_word))
                }
                Column { widest_cell, .. } => ColumnConstraint::Absolute(width(*widest_cell)),
            });
        }
    }
}

/// Text that a terminal shows as it is, in one line.
pub fn harmless(text: &str) -> String {
    let harmful = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    match text.contains(harmful) {
        false => text.to_owned(),
        true => text
            .chars()
            .flat_map(|c| match harmful(c) {
                true => c.escape_default().collect::<Vec<_>>(),
                false => vec![c],
            })
            .collect(),
    }
}

/// What stands where there is nothing.
pub fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}
