//! The `tojson` filter as chat templates expect it: Python's `json.dumps(x, ensure_ascii=False)`, keys in the order
//! given and nothing escaped for HTML. A prompt that differs by one space is another prompt.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::Formatter;

struct PythonStyle {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    depth: usize,
    has_items: bool,
}

impl PythonStyle {
    fn new_line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(indent.as_bytes()))
    }

    fn open<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_items = false;
        out.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_items {
            self.new_line(out)?;
        }
        self.has_items = true;
        out.write_all(bracket)
    }

    fn separate<W: ?Sized + Write>(&self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item_separator.as_bytes())?;
        }
        self.new_line(out)
    }
}

impl Formatter for PythonStyle {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }
    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.separate(out, first)
    }
    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }
    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }
    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }
    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.separate(out, first)
    }
    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key_separator.as_bytes())
    }
    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ensure_ascii {
            return out.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            if c.is_ascii() {
                out.write_all(&[c as u8])?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

fn indent_text(indent: Option<Value>) -> Result<Option<String>, Error> {
    let Some(indent) = indent.filter(|v| !v.is_none() && !v.is_undefined()) else { return Ok(None) };
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_string()));
    }
    let width = indent.as_usize().filter(|n| *n <= 64);
    let width = width.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "tojson: indent must be 0 to 64"))?;
    Ok(Some(" ".repeat(width)))
}

/// `tojson(indent=None, separators=None, sort_keys=False, ensure_ascii=False)`, as Hugging Face defines it.
pub fn tojson(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let indent = indent_text(indent.or(options.get("indent")?))?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let default_item = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ => (default_item.to_string(), ": ".to_string()),
    };
    let style = PythonStyle {
        indent,
        item_separator,
        key_separator,
        ensure_ascii: ensure_ascii.unwrap_or(false),
        depth: 0,
        has_items: false,
    };
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, style);
    let written = if sort_keys.unwrap_or(false) {
        serde_json::to_value(value).and_then(|mut sorted| {
            sorted.sort_all_objects();
            sorted.serialize(&mut serializer)
        })
    } else {
        value.serialize(&mut serializer)
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, format!("tojson: {e}")))?;
    String::from_utf8(out)
        .map(Value::from_safe_string)
        .map_err(|_| Error::new(ErrorKind::BadSerialization, "tojson: not UTF-8"))
}
