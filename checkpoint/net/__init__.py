"""How processes of one job reach each other: lines of JSON over TCP, and what is known of the machine they are on."""
