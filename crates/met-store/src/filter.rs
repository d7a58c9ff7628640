//! Which jobs are wanted of a store.

use met_core::conditions::{Conditions, OnNodes};
use met_core::job::{Record, State};
use met_core::listing::{Cursor, Listed, Order, Sort, id_number, sort_ns};
use met_core::member::{ACCOUNTS_MAX, Member};
use serde::{Deserialize, Serialize};

use crate::sql::{self, Value};

/// Which jobs to list. The default is all of them.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub times: JobTimes,
    pub owner: JobOwner,
    pub page: PageBounds,
    /// Any of these; none named means any at all.
    pub states: Vec<State>,
    pub name: Option<String>,
    pub manager: Option<String>,
    pub with_summaries: bool,
    /// Records as [`met_core::job::BriefRecord`] has them. To be read: one that is put over its whole record takes nothing
    /// from it, but one that is put in the place of another has no processes and no marked work.
    pub is_brief: bool,
    /// Only jobs that had a GPU, or that live and may have got one since they were last written.
    pub with_gpus: bool,
    /// Only jobs of which a process with this number is known. No index has these: a page ends when
    /// [`PROCESS_ROWS`] jobs were examined.
    pub pid: Option<u32>,
    pub conditions: Conditions,
    pub on_nodes: Option<OnNodes>,
}

/// When jobs started and ended.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct JobTimes {
    /// Started then or later.
    pub since_ns: Option<i64>,
    /// Started before then.
    pub until_ns: Option<i64>,
    /// Only jobs that have not ended, or ended after this time. Daemons and servers of earlier versions send others, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_after_ns: Option<i64>,
    /// Only jobs that ended after this time.
    #[serde(skip)]
    pub ended_after_ns: Option<i64>,
    /// No jobs that ended after this time.
    #[serde(skip)]
    pub settled_ns: Option<i64>,
}

/// Whose jobs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JobOwner {
    pub uid: Option<u32>,
    pub user: Option<String>,
    // A daemon of an earlier version sends none.
    #[serde(default)]
    pub account: Option<String>,
    /// Of all these only what a user and the user's accounts own. A client can only narrow its own view with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Member>,
}

/// Which part of the list, and its order.
#[derive(Clone, Debug, Default)]
pub struct PageBounds {
    /// `None`: newest first.
    pub sort: Option<Sort>,
    /// Until when running jobs have run.
    pub now_ns: i64,
    /// Behind this one in the list.
    pub after: Option<Cursor>,
    pub limit: Option<usize>,
    /// A page ends when the records in it have so many bytes; with one at least.
    pub max_bytes: Option<usize>,
}

impl JobTimes {
    fn accept(&self, job: &impl Listed) -> bool {
        self.since_ns.is_none_or(|since_ns| sort_ns(job) >= since_ns)
            && self.until_ns.is_none_or(|until_ns| sort_ns(job) < until_ns)
            && self.ended_after_ns.is_none_or(|ended_ns| job.end_ns().is_some_and(|end_ns| end_ns > ended_ns))
            && self.ran_after_ns.is_none_or(|ran_ns| job.end_ns().is_none_or(|end_ns| end_ns > ran_ns))
            && self.settled_ns.is_none_or(|ended_ns| job.end_ns().is_none_or(|end_ns| end_ns <= ended_ns))
    }

    /// Whether it depends on when jobs ended, which `job` has no column for.
    fn name_ends(&self) -> bool {
        [self.ended_after_ns, self.ran_after_ns, self.settled_ns].iter().any(Option::is_some)
    }
}

impl JobOwner {
    pub fn of_uid(uid: u32) -> JobOwner {
        JobOwner { uid: Some(uid), ..JobOwner::default() }
    }

    pub fn of_user(user: impl Into<String>) -> JobOwner {
        JobOwner { user: Some(user.into()), ..JobOwner::default() }
    }

    fn accepts(&self, job: &impl Listed) -> bool {
        self.uid.is_none_or(|uid| job.uid() == Some(uid))
            && self.member.as_ref().is_none_or(|member| member.sees_owner(job.user(), job.account()))
            && self.user.as_ref().is_none_or(|user| job.user() == Some(user))
            && self.account.as_ref().is_none_or(|account| job.account() == Some(account))
    }

    /// Whether a job is one of the user's or member's.
    pub(crate) fn may_see(&self, record: &Record) -> bool {
        self.uid.is_none_or(|uid| record.uid == Some(uid))
            && self.member.as_ref().is_none_or(|member| member.sees(record))
    }

    /// The same as a condition; `None` if any job is.
    pub(crate) fn sql_of_seen<'f>(&'f self, values: &mut Vec<Value<'f>>) -> Option<String> {
        let mut conditions = Vec::new();
        if let Some(uid) = self.uid {
            values.push(uid.into());
            conditions.push(format!("uid = ?{}", values.len()));
        }
        conditions.extend(self.member.as_ref().map(|member| owned_by(member, values)));
        (!conditions.is_empty()).then(|| conditions.join(" AND "))
    }
}

impl PageBounds {
    /// The first jobs of the list.
    pub fn first(limit: usize) -> PageBounds {
        PageBounds { limit: Some(limit), ..PageBounds::default() }
    }

    pub fn order(&self) -> Order {
        Order::new(self.sort, self.after.as_ref(), self.now_ns)
    }
}

impl Filter {
    pub fn accepts(&self, record: &Record) -> bool {
        self.accepts_listed(record)
            && self.pid.is_none_or(|pid| record.has_process(pid))
            && (!self.with_gpus || record.state.is_live() || !record.gpus.is_empty())
            && self.conditions.accept_record(record)
            && self.on_nodes.as_ref().is_none_or(|on_nodes| on_nodes.accept(record))
    }

    /// Whether a job passes all that needs no more than what is [`Listed`]. Who may see it comes first.
    pub(crate) fn accepts_listed(&self, job: &impl Listed) -> bool {
        self.owner.accepts(job)
            && self.times.accept(job)
            && (self.states.is_empty() || self.states.contains(&job.state()))
            && self.name.as_ref().is_none_or(|name| job.name() == name)
            && self.manager.as_ref().is_none_or(|manager| job.key().manager == *manager)
            && self.conditions.accept_listed(job, self.order().as_of_ns)
            && self.page.after.as_ref().is_none_or(|after| self.order().is_behind(job, after))
    }

    /// Whether a condition or the order needs more than what is [`Listed`] of a job that runs.
    pub(crate) fn needs_records(&self) -> bool {
        let by_record = self.page.sort.is_some_and(|sort| sort.column.needs_record());
        self.pid.is_some() || self.on_nodes.is_some() || self.conditions.need_record() || by_record
    }

    /// Whether the columns and indexes of `job` suffice for it.
    pub(crate) fn is_plain(&self) -> bool {
        self.page.sort.is_none()
            && self.conditions.is_empty()
            && self.on_nodes.is_none()
            && !self.times.name_ends()
    }

    /// Whether the values of jobs that run change from page to page.
    pub(crate) fn changes(&self) -> bool {
        self.needs_figures() || self.page.sort.is_some_and(|sort| sort.column.changes())
    }

    /// Whether it depends on figures that grow while a job runs.
    pub fn needs_figures(&self) -> bool {
        self.conditions.need_figures() || self.page.sort.is_some_and(|sort| sort.column.is_figure())
    }

    /// The order of the list.
    pub fn order(&self) -> Order {
        self.page.order()
    }

    /// As conditions on `job`.
    pub(crate) fn sql<'f>(
        &'f self,
        dialect: &sql::Dialect,
        after: Option<&'f Cursor>,
    ) -> (String, Vec<Value<'f>>) {
        // By the record itself, which every version has.
        let (mut condition, mut values) = self.sql_of_columns(dialect.has_gpus);
        if let Some(Cursor { start_ns, key, .. }) = after {
            let (first, bytewise) = (values.len() + 1, dialect.bytewise);
            let marks = (first..first + 6).map(|number| format!("?{number}")).collect::<Vec<_>>().join(", ");
            // The first condition is for the index alone.
            condition += &format!(
                " AND sort_ns <= ?{first} AND (sort_ns, id_number, id{bytewise}, manager{bytewise}, incarnation,
                 cluster{bytewise}) < ({marks})"
            );
            let cluster = key.cluster.as_deref().unwrap_or("");
            values.extend([Value::Integer(*start_ns), id_number(&key.id).into(), (&key.id).into()]);
            values.extend([Value::Text(&key.manager), key.incarnation.into(), cluster.into()]);
        }
        (condition, values)
    }

    /// Conditions on columns that `job` and `listed` both have.
    pub(crate) fn sql_of_columns<'f>(&'f self, has_gpus: &str) -> (String, Vec<Value<'f>>) {
        let mut conditions = Vec::new();
        let mut values: Vec<Value<'_>> = Vec::new();
        let known: [(&str, Value<'_>); 7] = [
            // Always there: without a condition on the first column of an index, SQLite reads and sorts all jobs.
            ("sort_ns >=", Value::Integer(self.times.since_ns.unwrap_or(i64::MIN))),
            ("sort_ns <", self.times.until_ns.into()),
            ("uid =", self.owner.uid.into()),
            ("\"user\" =", self.owner.user.as_ref().into()),
            ("name =", self.name.as_ref().into()),
            ("manager =", self.manager.as_ref().into()),
            ("account =", self.owner.account.as_ref().into()),
        ];
        for (condition, value) in known.into_iter().filter(|(_, value)| *value != Value::Null) {
            values.push(value);
            conditions.push(format!("{condition} ?{}", values.len()));
        }
        if let Some(member) = &self.owner.member {
            conditions.push(owned_by(member, &mut values));
        }
        if self.with_gpus {
            conditions.push(format!("(state IN ({}) OR {has_gpus})", live_states()));
        }
        if !self.states.is_empty() {
            conditions.push(states_are(&self.states));
            if !self.states.contains(&State::Finished) {
                // Said once more in the words of the index that holds only these.
                conditions.push("state <> 'finished'".to_string());
            }
        }
        (conditions.join(" AND "), values)
    }
}

/// The condition of [`Member::sees`].
fn owned_by<'f>(member: &'f Member, values: &mut Vec<Value<'f>>) -> String {
    let mut owners = Vec::new();
    let mut own = |column: &str, name: &'f String| {
        if !name.is_empty() {
            values.push(name.into());
            owners.push(format!("{column} = ?{}", values.len()));
        }
    };
    own("\"user\"", &member.user);
    member.accounts.iter().take(ACCOUNTS_MAX).for_each(|account| own("account", account));
    match owners.is_empty() {
        true => "1 = 0".to_owned(),
        false => format!("({})", owners.join(" OR ")),
    }
}

/// That the state is one of these, in the shorter way: SQLite compares a text with two others in a fraction of the time
/// in which it looks it up among many.
fn states_are(states: &[State]) -> String {
    let names = |states: Vec<&State>| {
        states.iter().map(|state| format!("'{}'", state.name())).collect::<Vec<_>>().join(", ")
    };
    let others: Vec<&State> = State::ALL.iter().filter(|state| !states.contains(state)).collect();
    match others.len() {
        1..=2 => format!("state NOT IN ({})", names(others)),
        _ => format!("state IN ({})", names(states.iter().collect())),
    }
}

/// The states of jobs that live, as SQL has them.
pub(crate) fn live_states() -> String {
    let live = State::ALL.into_iter().filter(|state| state.is_live());
    live.map(|state| format!("'{}'", state.name())).collect::<Vec<_>>().join(", ")
}
