"""The nouns: frozen structs and enums that every other room speaks in. No I/O, no clock, no logging."""
