"""The files of deploy/, each run or strictly checked by what knows its kind: `make deploy-check`, or at night."""
