//! The narrow rows of jobs by which lists are filtered, sorted and summed.

use std::time::Instant;

use met_core::conditions::{OnNodes, searched_command};
use met_core::grouping::{self, Membership, Sum, SumBy, SumSpan};
use met_core::job::Record;
use met_core::job_table::{CPU, EMISSIONS, ENERGY, MEMORY_NEEDED_PEAK, MEMORY_PEAK, READ, WRITTEN};
use met_core::listing::{self, Cursor, Order, Sort, SortColumn, SortValue, id_number, sort_ns};

use crate::error::StoreError;
use crate::filter::{Filter, live_states};
use crate::reading::{self, Parts, key_at};
use crate::sql::{self, Dialect, Mismatch, Row, Sql, Value, in_transaction};

type Result<T> = std::result::Result<T, StoreError>;

/// The version from which on there are such rows, with all that they have now.
pub(crate) const LISTED_VERSION: i64 = 8;
/// Says in `meta` that every job has one: an upgrade writes those of earlier jobs piece by piece.
const COMPLETE: &str = "listed";
/// Up to which key an upgrade has got.
const REACHED: &str = "listed_to";
/// Jobs that get theirs in one transaction: a command that opens an old store waits for one of them.
const PIECE: usize = 20;

const COLUMNS: &str = "job, sort_ns, id_number, incarnation, uid, start_ns, end_ns, duration_ns, nodes, cpu, cores, \
                       efficiency, memory, memory_peak, read, written, gpus, gpu_utilization, energy, emissions, \
                       is_inside, has_cards, state, manager, id, cluster, name, \"user\", account, partition, tags, \
                       pids, node_names, command, submit_ns, exit_status";

/// Words, each with this on both sides.
fn between(mark: char, words: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let mut text = String::new();
    for word in words {
        if text.is_empty() {
            text.push(mark);
        }
        text.push_str(word.as_ref());
        text.push(mark);
    }
    text
}

/// Writes the row of a job that has this key in the catalogue.
pub(crate) fn write(sql: &dyn Sql, job: i64, record: &Record) -> Result<()> {
    let runs = record.state.is_live() && record.end_ns.is_none();
    let total = |column: usize| Value::from(record.totals.get(column));
    let main = record.local.as_ref().and_then(|local| local.main).map(|main| main.pid);
    let pids = main.into_iter().chain(record.processes.iter().map(|process| process.pid));
    let pids = between(' ', pids.map(|pid| pid.to_string()));
    let (tags, node_names) = (between(' ', &record.annotation.tags), between('\n', &record.nodes));
    let command = searched_command(record);
    let duration_ns = listing::duration_ns(record, i64::MIN).filter(|_| !runs);
    // Of a running job both depend on when it is listed.
    let cores = listing::cores_millionths(record, i64::MIN).filter(|_| !runs);
    let efficiency = listing::efficiency_millionths(record, i64::MIN).filter(|_| !runs);
    let values: Vec<Value<'_>> = vec![
        job.into(),
        sort_ns(record).into(),
        id_number(&record.key.id).into(),
        record.key.incarnation.into(),
        record.uid.into(),
        record.start_ns.into(),
        record.end_ns.into(),
        duration_ns.into(),
        listing::nodes(record).into(),
        total(CPU),
        cores.into(),
        efficiency.into(),
        total(MEMORY_NEEDED_PEAK),
        total(MEMORY_PEAK),
        total(READ),
        total(WRITTEN),
        listing::gpus(record).into(),
        listing::gpu_millionths(record).into(),
        total(ENERGY),
        total(EMISSIONS),
        i64::from(record.inside.is_some()).into(),
        i64::from(!record.gpus.is_empty()).into(),
        record.state.name().into(),
        (&record.key.manager).into(),
        (&record.key.id).into(),
        record.key.cluster.as_deref().unwrap_or("").into(),
        (&record.name).into(),
        record.user.as_ref().into(),
        record.account.as_ref().into(),
        record.scheduling.partition.as_ref().into(),
        (&tags).into(),
        (&pids).into(),
        (&node_names).into(),
        (&command).into(),
        record.scheduling.submit_ns.into(),
        listing::exit_status(record).into(),
    ];
    sql.execute("DELETE FROM listed WHERE job = ?1", &[job.into()])?;
    sql.insert(&format!("listed ({COLUMNS})"), values.len(), &values)?;
    write_nodes(sql, job, record)
}

fn write_nodes(sql: &dyn Sql, job: i64, record: &Record) -> Result<()> {
    sql.execute("DELETE FROM listed_node WHERE job = ?1", &[job.into()])?;
    if record.nodes.len() == 1 {
        return Ok(());
    }
    let shares = grouping::on_nodes(record);
    let known = |count: u64, amount: i64| Value::from((count > 0).then_some(amount));
    let values: Vec<Value<'_>> = shares
        .iter()
        .flat_map(|(node, share)| {
            let Sum { jobs_with_energy, jobs_with_emissions, jobs_with_cpu, .. } = *share;
            [
                job.into(),
                node.as_ref().into(),
                known(jobs_with_energy, share.energy_uj),
                known(jobs_with_emissions, share.emissions_ug),
                known(jobs_with_cpu, share.cpu_ns),
            ]
        })
        .collect();
    sql.insert("listed_node (job, node, energy, emissions, cpu)", 5, &values)
}

/// Whether every job has a row.
pub(crate) fn is_complete(sql: &dyn Sql) -> Result<bool> {
    if sql.version()? < LISTED_VERSION {
        return Ok(false);
    }
    let found = sql::first(sql, "SELECT value FROM meta WHERE name = ?1", &[COMPLETE.into()], |_| Ok(()))?;
    Ok(found.is_some())
}

/// Writes rows of jobs that an earlier version wrote, piece by piece until this time, and at least one piece. True when
/// every job has one. What cannot be read stays without.
pub(crate) fn complete(sql: &dyn Sql, until: Instant) -> Result<bool> {
    if is_complete(sql)? {
        return Ok(true);
    }
    loop {
        if in_transaction(sql, false, || write_piece(sql))? {
            let statement = "INSERT INTO meta (name, value) VALUES (?1, '1') ON CONFLICT (name) DO NOTHING";
            in_transaction(sql, true, || sql.execute(statement, &[COMPLETE.into()]).map(drop))?;
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
    }
}

/// One piece, from where the last one ended. True if it was the last.
fn write_piece(sql: &dyn Sql) -> Result<bool> {
    let known = sql::first(sql, "SELECT value FROM meta WHERE name = ?1", &[REACHED.into()], |row| {
        Ok(row.get(0).text()?.parse().unwrap_or(i64::MIN))
    })?;
    let behind =
        "WHERE key > ?1 AND NOT EXISTS (SELECT 1 FROM listed WHERE listed.job = job.key) ORDER BY key";
    let selected = reading::rows(sql, behind, &[known.unwrap_or(i64::MIN).into()], Some(PIECE), Parts::ALL)?;
    for stored in &selected.found {
        write(sql, stored.key, &stored.record)?;
    }
    if selected.rows < PIECE {
        return Ok(true);
    }
    let reached = selected.last_key.to_string();
    let statement = "INSERT INTO meta (name, value) VALUES (?1, ?2)
                     ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    sql.execute(statement, &[REACHED.into(), (&reached).into()])?;
    Ok(false)
}

/// A job of a list: its key in the catalogue, and its position.
pub(crate) struct Place {
    pub job: i64,
    pub cursor: Cursor,
}

/// The places of the jobs that fit, in their order. Running jobs have the figures that are stored.
pub(crate) fn places(sql: &dyn Sql, filter: &Filter) -> Result<Vec<Place>> {
    let (statement, values) = statement(sql.dialect(), filter);
    let order = filter.order();
    sql::all(sql, &statement, &values, |row| place(row, &order))
}

fn place(row: &dyn Row, order: &Order) -> std::result::Result<Place, Mismatch> {
    let value = match row.get(6) {
        Value::Integer(number) => Some(SortValue::Number(number)),
        Value::Text(text) => Some(SortValue::Text(text.to_owned())),
        _ => None,
    };
    let sorted = order.sort.map(|_| order.sorted(value));
    let cursor = Cursor { start_ns: row.get(1).integer()?, key: key_at(row, 2)?, sorted };
    Ok(Place { job: row.get(0).integer()?, cursor })
}

pub(crate) fn statement<'f>(dialect: &'f Dialect, filter: &'f Filter) -> (String, Vec<Value<'f>>) {
    let mut select = Select::new(dialect, filter);
    let (by, direction) = match filter.page.sort {
        None => ("NULL".to_owned(), None),
        Some(sort) => (select.value(sort), Some(if sort.descending { "DESC" } else { "ASC" })),
    };
    if let Some(after) = &filter.page.after {
        select.behind(&by, after, filter.page.sort.is_some_and(|sort| sort.descending));
    }
    let by_value = direction.map_or(String::new(), |direction| format!("{by} IS NULL, {by} {direction}, "));
    let limit = filter.page.limit.map_or(String::new(), |limit| {
        // One more says that the list goes on.
        format!(" LIMIT {}", limit.saturating_add(1).min(i64::MAX as usize))
    });
    let statement = format!(
        "SELECT job, sort_ns, cluster, manager, id, incarnation, {by} FROM listed WHERE {} ORDER BY {by_value}{}{limit}",
        select.conditions.join(" AND "),
        reading::order(dialect)
    );
    (statement, select.values)
}

/// Conditions on rows and the values in them.
struct Select<'f> {
    dialect: &'f Dialect,
    conditions: Vec<String>,
    values: Vec<Value<'f>>,
    as_of_ns: i64,
}

impl<'f> Select<'f> {
    fn new(dialect: &'f Dialect, filter: &'f Filter) -> Select<'f> {
        let plain = filter.sql_of_columns("has_cards = 1");
        let as_of_ns = filter.order().as_of_ns;
        let mut select = Select { dialect, conditions: vec![plain.0], values: plain.1, as_of_ns };
        select.add(filter);
        select
    }

    fn mark(&mut self, value: impl Into<Value<'f>>) -> String {
        self.values.push(value.into());
        format!("?{}", self.values.len())
    }

    fn add(&mut self, filter: &'f Filter) {
        let wanted = &filter.conditions;
        let position = self.dialect.position;
        if let Some(part) = &wanted.command {
            let part = self.mark(part);
            self.conditions.push(format!("{position}(command, {part}) > 0"));
        }
        if let Some(partition) = &wanted.partition {
            let partition = self.mark(partition);
            self.conditions.push(format!("partition = {partition}"));
        }
        // With a separator in it, it would fit two neighbours of the list.
        let has_separator = |text: &Option<String>, separator| {
            text.as_ref().is_some_and(|text| text.is_empty() || text.contains(separator))
        };
        if has_separator(&wanted.node, '\n') || has_separator(&wanted.tag, ' ') {
            self.conditions.push("1 = 0".to_owned());
        }
        if let Some(node) = &wanted.node {
            let node = self.mark(node);
            self.conditions.push(format!("{position}(node_names, '\n' || {node} || '\n') > 0"));
        }
        if let Some(on_nodes) = &filter.on_nodes {
            self.add_nodes(on_nodes);
        }
        if let Some(tag) = &wanted.tag {
            let tag = self.mark(tag);
            self.conditions.push(format!("{position}(tags, ' ' || {tag} || ' ') > 0"));
        }
        if let Some(pid) = filter.pid {
            self.conditions.push(format!("{position}(pids, ' {pid} ') > 0"));
        }
        if let Some(least) = wanted.min_duration_ns {
            let (duration, least) = (self.duration(), self.mark(least));
            self.conditions.push(format!("{duration} >= {least}"));
        }
        if let Some(ended_ns) = filter.times.ended_after_ns {
            let ended = self.mark(ended_ns);
            // First: it decides for most jobs, and nothing else of them is looked at.
            self.conditions.insert(0, format!("end_ns > {ended}"));
        }
        if let Some(ran_ns) = filter.times.ran_after_ns {
            let ran = self.mark(ran_ns);
            // First, for the same reason.
            self.conditions.insert(0, format!("(end_ns IS NULL OR end_ns > {ran})"));
        }
        if let Some(ended_ns) = filter.times.settled_ns {
            let ended = self.mark(ended_ns);
            self.conditions.push(format!("(end_ns IS NULL OR end_ns <= {ended})"));
        }
        if let Some(least) = wanted.min_energy_uj {
            let least = self.mark(least);
            self.conditions.push(format!("energy >= {least}"));
        }
        if let Some(most) = wanted.max_efficiency_millionths() {
            let most = self.mark(most);
            self.conditions.push(format!("efficiency <= {most}"));
        }
    }

    /// As [`OnNodes::accept`]. The time comes first: it decides for most jobs, and their names are not looked at.
    fn add_nodes(&mut self, on_nodes: &'f OnNodes) {
        let since = self.mark(on_nodes.since_ns);
        self.conditions.push(format!("(end_ns IS NULL OR end_ns > {since})"));
        let mut any = vec!["1 = 0".to_owned()];
        for node in on_nodes.nodes.iter().filter(|node| !node.is_empty() && !node.contains('\n')) {
            let (position, node) = (self.dialect.position, self.mark(node));
            any.push(format!("{position}(node_names, '\n' || {node} || '\n') > 0"));
        }
        self.conditions.push(format!("({})", any.join(" OR ")));
    }

    /// As [`listing::duration_ns`].
    fn duration(&mut self) -> String {
        let now = self.mark(self.as_of_ns);
        format!(
            "CASE WHEN duration_ns IS NOT NULL THEN duration_ns
                  WHEN end_ns IS NOT NULL OR start_ns IS NULL OR state NOT IN ('running', 'suspended') THEN NULL
                  WHEN start_ns < {now} THEN {now} - start_ns ELSE 0 END"
        )
    }

    /// As [`listing::queued_ns`].
    fn queued(&mut self) -> String {
        let now = self.mark(self.as_of_ns);
        let until = format!("coalesce(start_ns, CASE WHEN state = 'pending' THEN {now} ELSE end_ns END)");
        format!("(CASE WHEN {until} > {now} THEN {now} ELSE {until} END - submit_ns)")
    }

    /// What a list is sorted by, as [`Sort::value`] has it.
    fn value(&mut self, sort: Sort) -> String {
        let bytewise = self.dialect.bytewise;
        match sort.column {
            SortColumn::Duration => self.duration(),
            SortColumn::Start => "start_ns".to_owned(),
            SortColumn::End => "end_ns".to_owned(),
            SortColumn::Job => "id_number".to_owned(),
            SortColumn::User => format!("\"user\"{bytewise}"),
            SortColumn::Queued => self.queued(),
            SortColumn::Exit => "exit_status".to_owned(),
            SortColumn::Tags => format!("NULLIF(tags, ''){bytewise}"),
            SortColumn::Command => {
                format!("NULLIF(substr(command, 1, {}), ''){bytewise}", listing::COMMAND_LETTERS)
            }
            SortColumn::Name
            | SortColumn::Account
            | SortColumn::State
            | SortColumn::Manager
            | SortColumn::Partition => format!("{}{bytewise}", sort.column.name()),
            // The columns of figures have these names.
            figure => figure.name().to_owned(),
        }
    }

    /// Behind a job of the list.
    fn behind(&mut self, by: &str, after: &'f Cursor, descending: bool) {
        let key = &after.key;
        let bytewise = self.dialect.bytewise;
        let marks = [
            self.mark(after.start_ns),
            self.mark(id_number(&key.id)),
            self.mark(&key.id),
            self.mark(&key.manager),
            self.mark(key.incarnation),
            self.mark(key.cluster.as_deref().unwrap_or("")),
        ];
        let among_equal = format!(
            "(sort_ns, id_number, id{bytewise}, manager{bytewise}, incarnation, cluster{bytewise}) < ({})",
            marks.join(", ")
        );
        let Some(sorted) = &after.sorted else { return self.conditions.push(among_equal) };
        let value = match &sorted.value {
            None => return self.conditions.push(format!("{by} IS NULL AND {among_equal}")),
            Some(SortValue::Number(number)) => self.mark(*number),
            Some(SortValue::Text(text)) => self.mark(text),
        };
        let is_further = if descending { "<" } else { ">" };
        self.conditions
            .push(format!("({by} {is_further} {value} OR {by} = {value} AND {among_equal} OR {by} IS NULL)"));
    }
}

/// Who had jobs in which account.
pub(crate) fn memberships(sql: &dyn Sql, filter: &Filter) -> Result<Vec<Membership>> {
    let select = Select::new(sql.dialect(), filter);
    let statement = format!(
        "SELECT \"user\", account, count(*), min(start_ns), max(start_ns) FROM listed WHERE {} GROUP BY \"user\", account",
        select.conditions.join(" AND ")
    );
    sql::all(sql, &statement, &select.values, |row| {
        let text = |at: usize| row.get(at).text().ok().map(str::to_owned);
        Ok(Membership {
            user: text(0),
            account: text(1),
            jobs: u64::try_from(row.get(2).integer()?).unwrap_or(0),
            first_start_ns: row.get(3).integer().ok(),
            last_start_ns: row.get(4).integer().ok(),
        })
    })
}

/// Sums of a column in two parts: one would not fit a number where all CPU time of a cluster is summed.
const SUM_PART: i64 = 1_000_000_000;

fn summed() -> String {
    let of = |column: &str| {
        format!(
            "count({column}), CAST(sum({column} / {SUM_PART}) AS BIGINT), CAST(sum({column} % {SUM_PART}) AS BIGINT)"
        )
    };
    format!("count(*), {}, {}, {}", of("energy"), of("emissions"), of("cpu"))
}

pub(crate) fn sums(sql: &dyn Sql, filter: &Filter, span: &SumSpan) -> Result<Vec<Sum>> {
    let mut select = Select::new(sql.dialect(), filter);
    let (from, to) = (select.mark(span.from_ns), select.mark(span.to_ns));
    select.conditions.push(format!("end_ns >= {from} AND end_ns < {to}"));
    select.conditions.push(format!("is_inside = 0 AND state NOT IN ({})", live_states()));
    let (condition, summed) = (select.conditions.join(" AND "), summed());
    let by = |column: &str, more: &str| {
        format!("SELECT {column}, {summed} FROM listed WHERE {condition}{more} GROUP BY {column}")
    };
    let ask = |statement: &str| sql::all(sql, statement, &select.values, sum_of);
    match span.by {
        SumBy::User => ask(&by("\"user\"", "")),
        SumBy::Account => ask(&by("account", "")),
        SumBy::Manager => ask(&by("manager", "")),
        SumBy::Node => {
            let mut sums = ask(&by("node_names", " AND nodes = 1 AND node_names <> ''"))?;
            for sum in &mut sums {
                sum.name = sum.name.take().map(|name| name.trim_matches('\n').to_owned());
            }
            let parts = ask(&format!(
                "SELECT node, {summed} FROM listed_node
                 WHERE job IN (SELECT job FROM listed WHERE {condition}) GROUP BY node"
            ))?;
            Ok(added(sums, parts))
        }
    }
}

/// Sums of the same name as one, by name.
pub(crate) fn added(sums: Vec<Sum>, more: Vec<Sum>) -> Vec<Sum> {
    let mut by_name = std::collections::BTreeMap::<Option<String>, Sum>::new();
    for sum in sums.into_iter().chain(more) {
        by_name.entry(sum.name.clone()).or_default().add(&sum);
    }
    by_name.into_iter().map(|(name, sum)| Sum { name, ..sum }).collect()
}

fn sum_of(row: &dyn Row) -> std::result::Result<Sum, Mismatch> {
    let count = |at: usize| row.get(at).integer().map(|count| u64::try_from(count).unwrap_or(0));
    let amount = |at: usize| {
        let [whole, rest] = [at, at + 1].map(|at| row.get(at).integer().unwrap_or(0));
        whole.saturating_mul(SUM_PART).saturating_add(rest)
    };
    Ok(Sum {
        name: row.get(0).text().ok().map(str::to_owned),
        jobs: count(1)?,
        jobs_with_energy: count(2)?,
        energy_uj: amount(3),
        jobs_with_emissions: count(5)?,
        emissions_ug: amount(6),
        jobs_with_cpu: count(8)?,
        cpu_ns: amount(9),
    })
}
