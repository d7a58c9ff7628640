//! Events as lines of CSV with one value in each, for any sink that writes text.

use met_insight::csv::{self, Cell};
use serde_json::Value;

pub const HEAD: &str = "time,event,table,node,manager,job,part,name,value\n";

/// A line for each value of an object that `event_json` made.
pub fn write_lines(object: &Value, lines: &mut Vec<u8>) {
    let job = &object["job"];
    let labels = object["labels"].as_object().into_iter().flat_map(|labels| labels.values());
    let part = object["part"].as_str().into_iter().chain(labels.filter_map(Value::as_str));
    let part = Value::from(part.collect::<Vec<_>>().join(" "));
    let head = ["time", "event", "table", "node"].map(|key| &object[key]);
    let head: Vec<&Value> = head.into_iter().chain([&job["manager"], &job["raw_id"], &part]).collect();
    let state = [("state", &job["state"])].into_iter().filter(|(_, value)| !value.is_null());
    let figures = [&object["values"], &object["totals"]].into_iter().filter_map(Value::as_object).flatten();
    let mut text = String::new();
    for (name, value) in state.chain(figures.map(|(name, value)| (name.as_str(), value))) {
        let cells = head.iter().map(|value| Cell::from(*value));
        csv::write_line(&mut text, cells.chain([Cell::Plain(name), Cell::from(value)]), "\n");
    }
    lines.extend(text.into_bytes());
}
