# Fits R's stm to a corpus and prints its effects: Rscript stm.R COUNTS COLUMNS K SEED. COUNTS has document, word and
# count of each entry, from 1 on, and COLUMNS the column x.
arguments <- commandArgs(TRUE)
suppressMessages(library(stm))
entries <- read.csv(arguments[1])
columns <- read.csv(arguments[2])
size <- as.integer(arguments[3])
seed <- as.integer(arguments[4])
words <- sort(unique(entries$word))
entries$word <- match(entries$word, words)
documents <- lapply(split(entries, entries$document), function(d) rbind(d$word, d$count))
fit <- stm(documents, as.character(words), K = size, prevalence = ~x, data = columns,
           init.type = "Spectral", verbose = FALSE, seed = seed)
effects <- lapply(c(Global = "Global", Local = "Local"), function(uncertainty) {
  formula <- as.formula(sprintf("1:%d ~ x", size))
  found <- estimateEffect(formula, fit, metadata = columns, uncertainty = uncertainty, documents = documents)
  t(sapply(summary(found)$tables, function(table) table["x", 1:2]))
})
out <- c(effects, list(words = words, beta = exp(fit$beta$logbeta[[1]])))
cat(jsonlite::toJSON(out, digits = NA, matrix = "rowmajor"))
