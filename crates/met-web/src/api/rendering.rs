//! An answer in the form that the client wants: JSON or CSV, compressed or not, or that it has not changed.

use std::io::Write;

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use met_insight::csv::{self, CRLF, Cell};
use met_sinks::prometheus::accepts_gzip;
use ring::digest::{SHA256, digest};
use serde_json::Value;

use super::Asked;
use super::endpoint::{Content, Endpoint, Table};
use super::parameters::Given;
use crate::problem::Problem;

/// A shorter answer is not compressed.
const GZIP_FROM: usize = 1 << 10;
const JSON: &str = "application/json";
const CSV: &str = "text/csv; charset=utf-8; header=present";
const VARY: &str = "Accept, Accept-Encoding, Authorization, Cookie";

/// Whether the client wants CSV: it says so in the address, or names it before JSON in `Accept`.
pub(super) fn wants_csv(endpoint: &Endpoint, given: &Given, headers: &HeaderMap) -> bool {
    if matches!(endpoint.table, Table::None) {
        return false;
    }
    match given.text("format") {
        Some(format) => format == "csv",
        None => {
            let accept = text(headers, header::ACCEPT);
            quality(accept, "text/csv")
                .is_some_and(|csv| csv > 0.0 && csv >= quality(accept, JSON).unwrap_or(0.0))
        }
    }
}

/// How much a kind of content is wanted, if it is named.
fn quality(accept: &str, kind: &str) -> Option<f64> {
    let mut entries = accept.split(',').map(|entry| entry.split(';').map(str::trim));
    entries.find_map(|mut parts| {
        let is_meant = parts.next()?.eq_ignore_ascii_case(kind);
        let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
        is_meant.then(|| quality.unwrap_or(1.0))
    })
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

pub(super) fn respond(
    endpoint: &Endpoint,
    asked: &Asked,
    headers: &HeaderMap,
    uri: &Uri,
    content: Content,
) -> Result<Response, Problem> {
    let (kind, body, next) = match content {
        Content::Text { json, next } => (JSON, json, next),
        Content::Value(value) => {
            let next = value["next"].as_str().map(str::to_owned);
            match asked.csv {
                true => (CSV, table(endpoint.table, &asked.given, &value)?, next),
                false => (JSON, value.to_string(), next),
            }
        }
    };
    let tag = tag(kind, body.as_bytes());
    let mut response = match is_known(text(headers, header::IF_NONE_MATCH), &tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => with_body(kind, endpoint, body, accepts_gzip(text(headers, header::ACCEPT_ENCODING))),
    };
    let own = response.headers_mut();
    // It may be stored, and is asked for again before it is shown: rights may have changed.
    own.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    own.insert(header::VARY, HeaderValue::from_static(VARY));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        own.insert(header::ETAG, tag);
    }
    if let Some(link) = next.and_then(|next| HeaderValue::from_str(&link(uri, &next)).ok()) {
        own.insert(header::LINK, link);
    }
    Ok(response)
}

fn with_body(kind: &'static str, endpoint: &Endpoint, body: String, gzip: bool) -> Response {
    let packed = (gzip && body.len() >= GZIP_FROM).then(|| packed(body.as_bytes())).flatten();
    let is_packed = packed.is_some();
    let mut response = packed.unwrap_or_else(|| body.into_bytes()).into_response();
    let own = response.headers_mut();
    own.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if is_packed {
        own.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if kind == CSV {
        let name = endpoint.path.rsplit('/').next().unwrap_or("table");
        if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}.csv\"")) {
            own.insert(header::CONTENT_DISPOSITION, value);
        }
    }
    response
}

fn packed(body: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}

/// Weak: the same content may be sent compressed or not.
fn tag(kind: &str, body: &[u8]) -> String {
    let sum = digest(&SHA256, body);
    let hex: String = sum.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("W/\"{}-{hex}\"", if kind == CSV { "csv" } else { "json" })
}

fn is_known(given: &str, tag: &str) -> bool {
    let strong = tag.trim_start_matches("W/");
    given.split(',').map(str::trim).any(|one| one == "*" || one.trim_start_matches("W/") == strong)
}

/// The address of the next page, relative: a proxy or a prefix does not matter.
fn link(uri: &Uri, next: &str) -> String {
    let others =
        uri.query().unwrap_or("").split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("after="));
    let pairs: Vec<&str> = others.collect();
    let next = format!("after={next}");
    let query = pairs.into_iter().chain([next.as_str()]).collect::<Vec<_>>().join("&");
    format!("<?{query}>; rel=\"next\"")
}

/// The table in an answer.
fn table(table: Table, given: &Given, value: &Value) -> Result<String, Problem> {
    match table {
        Table::None => Ok(String::new()),
        Table::Rows(key, columns) => {
            rows(&columns(), given, value[key].as_array().map_or(&[][..], Vec::as_slice))
        }
        Table::Series => Ok(series(value)),
        Table::ManySeries => {
            let all = value["series"].as_array().map_or(&[][..], Vec::as_slice);
            Ok(many(all))
        }
    }
}

fn rows(columns: &[(String, String)], given: &Given, rows: &[Value]) -> Result<String, Problem> {
    let chosen: Vec<&(String, String)> = match given.list("columns") {
        None => columns.iter().collect(),
        Some(names) => {
            let find = |name: &String| {
                let unknown = || {
                    let known: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
                    Problem::field(
                        "columns",
                        format!("no column named {name:?}; columns: {}", known.join(", ")),
                    )
                };
                columns.iter().find(|(known, _)| known == name).ok_or_else(unknown)
            };
            names.iter().map(find).collect::<Result<_, _>>()?
        }
    };
    let mut lines = csv::header(chosen.iter().map(|(name, _)| name.as_str()));
    for row in rows {
        let texts: Vec<Option<String>> = chosen.iter().map(|(_, place)| joined(row.pointer(place))).collect();
        let cells = chosen.iter().zip(&texts).map(|((_, place), text)| match text {
            Some(text) => Cell::Text(text),
            None => row.pointer(place).map_or(Cell::Unknown, Cell::from),
        });
        csv::write_line(&mut lines, cells, CRLF);
    }
    Ok(lines)
}

/// A list of texts in one cell.
fn joined(value: Option<&Value>) -> Option<String> {
    let texts: Vec<&str> = value?.as_array()?.iter().filter_map(Value::as_str).collect();
    Some(texts.join(" "))
}

/// A line for each time of a series; of a reduced one, three columns for each of its columns.
fn series(series: &Value) -> String {
    let (names, columns) = columns_of(series);
    let mut lines = csv::header(["time"].into_iter().chain(names.iter().map(String::as_str)));
    for (index, time) in series["times"].as_array().into_iter().flatten().enumerate() {
        let time = time.as_str().map_or(Cell::Unknown, Cell::Plain);
        let cells = columns.iter().map(|column| column.get(index).map_or(Cell::Unknown, Cell::from));
        csv::write_line(&mut lines, [time].into_iter().chain(cells), CRLF);
    }
    lines
}

fn columns_of(series: &Value) -> (Vec<String>, Vec<&[Value]>) {
    let mut named: Vec<(String, &[Value])> = Vec::new();
    for (name, column) in series["columns"].as_object().into_iter().flatten() {
        match column.as_array() {
            Some(cells) => named.push((name.clone(), cells)),
            None => {
                for figure in ["min", "mean", "max"] {
                    let cells = column[figure].as_array().map_or(&[][..], Vec::as_slice);
                    named.push((format!("{name}_{figure}"), cells));
                }
            }
        }
    }
    named.into_iter().unzip()
}

/// A line for each span and column of several series, which have different columns.
fn many(all: &[Value]) -> String {
    let mut lines = csv::header(["time", "table", "part", "column", "min", "mean", "max"]);
    for one in all {
        for (name, column) in one["columns"].as_object().into_iter().flatten() {
            for (index, time) in one["times"].as_array().into_iter().flatten().enumerate() {
                let figures = ["min", "mean", "max"].map(|figure| &column[figure][index]);
                if figures[1].is_null() {
                    continue;
                }
                let head = [time, &one["table"], &one["part"]].map(Cell::from);
                let cells = head.into_iter().chain([Cell::Plain(name)]).chain(figures.map(Cell::from));
                csv::write_line(&mut lines, cells, CRLF);
            }
        }
    }
    lines
}
