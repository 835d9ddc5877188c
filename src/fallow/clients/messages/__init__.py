"""Where people read: Slack, e-mail, PagerDuty, Teams, anybody's webhook. Each channel in its own words, one file each.

A channel is handed what to say and where; it raises unless the other side confirmed that it has it. Which message is
worth sending, to whom, and how it is worded is the hands' matter (act/notices).
"""
